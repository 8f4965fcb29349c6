"""Django in this process, over a file of SQLite that beats of other processes may share.

Importing it sets Django up, so that what is imported after it may name models.
"""

import os
import tempfile
from pathlib import Path

import django
from django.apps import apps

SETTINGS = "tests.support.shop_settings"
#: The folder of the database; whoever moves it away takes the database away.
FOLDER = Path(tempfile.mkdtemp(prefix="shop-")) / "database"

if not apps.ready:
    FOLDER.mkdir()
    os.environ["SHOP_DATABASE"] = str(FOLDER / "shop.sqlite3")
    os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
    try:
        django.setup()
    finally:
        # Celery takes this variable for a wish that every app be set up for Django
        del os.environ["DJANGO_SETTINGS_MODULE"]
