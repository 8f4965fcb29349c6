"""An app as one would write it with celery-singlebeat, how to deploy it, and a demo that attacks it."""
