from celery_singlebeat.settings import Settings
from tests.support import documents
from tests.support.shop_beat import rows

PAGE = documents.page("django.md")


def test_the_rows_of_the_page_become_entries(start, database):
    for block in PAGE.blocks("python django"):
        exec(documents.as_code(block, PAGE.name), {"__name__": "shop"})
    assert set(rows()) == {"Tokyo opens", "migration"}
    assert start().lead().names() == ["Tokyo opens", "migration"]


def test_the_settings_of_the_page_are_read():
    (block,) = PAGE.blocks("python")
    namespace = {}
    exec(documents.as_code(block, PAGE.name), namespace)
    read = Settings.from_conf(namespace, namespace="CELERY", broker_url=namespace["CELERY_BROKER_URL"])
    assert (read.misfire, read.misfire_grace) == ("latest", 3600)
