"""Settings of the Django project of the tests: the tables of django-celery-beat in a file of SQLite."""

import json
import os

import django

SECRET_KEY = "for tests"
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SHOP_DATABASE"],
        # Two transactions that read before they write lock each other out at once, whatever the timeout.
        "OPTIONS": {"timeout": 10, **({"transaction_mode": "IMMEDIATE"} if django.VERSION >= (5, 1) else {})},
    }
}
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
LOGGING_CONFIG = None
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER", "memory://")
CELERY_BEAT_SCHEDULER = "celery_singlebeat.django:SingleBeatDatabaseScheduler"
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = None
CELERY_SINGLEBEAT_PREFIX = "fleet"
CELERY_SINGLEBEAT_LEASE_TTL = 3
globals().update(json.loads(os.environ.get("SHOP_SETTINGS", "{}")))
