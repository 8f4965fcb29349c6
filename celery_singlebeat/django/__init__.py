"""The scheduler over the tables of django-celery-beat, which people edit in Django's admin.

D1  The database says what shall run and when; what was sent is in the store. So a run is never repeated for
    want of its history, and the history is mended from the store.
D2  One thread talks to the database. The tick loop never waits for it, and goes on with the schedule that
    it has while the database is away.
D3  A standby reads the database and writes nothing into it.
D4  A one-off task runs once, however many leaders saw it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_singlebeat.errors import ExtraMissing, SettingsError

try:
    import django_celery_beat  # noqa: F401 - asked for here, so that its absence is said in one line
    from django.core.exceptions import AppRegistryNotReady, ImproperlyConfigured
except ImportError:
    raise ExtraMissing("the scheduler over Django's database needs django-celery-beat", "django") from None

if TYPE_CHECKING:
    from celery_singlebeat.django.scheduler import SingleBeatDatabaseScheduler

__all__ = ["SingleBeatDatabaseScheduler"]


def __getattr__(name: str) -> Any:
    # Models can be imported only where Django is set up, and this module is imported anywhere.
    if name != "SingleBeatDatabaseScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from celery_singlebeat.django.scheduler import SingleBeatDatabaseScheduler  # noqa: PLC0415
    except (ImproperlyConfigured, AppRegistryNotReady) as error:
        problem = " ".join(str(error).split())
        raise SettingsError(
            f"Django is not set up ({problem.rstrip('.')}): "
            "set DJANGO_SETTINGS_MODULE in the module of your Celery app, before the app is made"
        ) from None
    except RuntimeError as error:
        if "INSTALLED_APPS" not in str(error):
            raise
        raise SettingsError(
            "django_celery_beat is not among INSTALLED_APPS: add it, and run 'python manage.py migrate'"
        ) from None
    return SingleBeatDatabaseScheduler
