"""What several tests share: pytest-celery's nodes as local processes, a proxy with faults, skip rules."""
