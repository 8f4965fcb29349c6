"""How a command ends: its exit code, and the one line that says why (O2, O3, O4)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from celery_singlebeat.errors import EntryError, SettingsError, SingleBeatError, StoreUnavailable

NO, WRONG, UNREACHABLE = 1, 2, 3

#: Shorter passwords are not looked for: every text would be full of them.
_SHORTEST = 3


class Failure(click.ClickException):
    """One line on stderr, and an exit code."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code  # type: ignore[misc] # click has one for each class


class Commands(click.Group):
    """A group whose commands fail in one line, whatever fails."""

    group_class = type

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the group's own arguments."""
        with _one_line(parent):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Parse the command's arguments and run it."""
        with _one_line(ctx):
            return super().invoke(ctx)


def app_of(ctx: click.Context) -> Any:
    """The Celery app that `celery -A` found."""
    return ctx.obj.app


def app_with_tasks(ctx: click.Context) -> Any:
    """The Celery app with its task modules imported, as its workers have it: tasks say which queues their
    dead letters go to.
    """
    app = app_of(ctx)
    try:
        with redirect_stdout(sys.stderr):  # whatever the user's modules print (O1)
            app.loader.import_default_modules()
    except Exception as error:
        text = f"the task modules cannot be imported: {type(error).__name__}: {error}"
        raise Failure(WRONG, without_secrets(text, app)) from None
    return app


@contextmanager
def _one_line(ctx: click.Context | None) -> Iterator[None]:
    app = getattr(ctx.obj if ctx is not None else None, "app", None)
    try:
        yield
    except (Failure, BrokenPipeError):
        raise
    except click.UsageError as error:
        if not error.format_message() or "\n" in error.format_message():
            raise  # the help, asked for by giving no arguments
        hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        raise Failure(WRONG, without_secrets(error.format_message() + hint, app)) from None
    except (click.ClickException, click.exceptions.Exit, click.Abort) as error:
        if not isinstance(error, SettingsError):
            raise
        raise Failure(WRONG, without_secrets(str(error), app)) from None
    except Exception as error:
        code = _exit_code(error, app)
        if code is None:
            raise
        text = str(error) if isinstance(error, SingleBeatError) else f"{type(error).__name__}: {error}"
        if isinstance(error, StoreUnavailable):
            text += f" (the store is {_place(app)})"
        raise Failure(code, without_secrets(text, app)) from None


def _exit_code(error: Exception, app: Any) -> int | None:
    """The exit code for an error that a command may end with; None: it is a mistake of this package."""
    from celery.exceptions import ImproperlyConfigured  # noqa: PLC0415 - see the package
    from kombu.exceptions import OperationalError  # noqa: PLC0415

    if isinstance(error, (StoreUnavailable, OperationalError)):
        return UNREACHABLE
    if isinstance(error, EntryError):
        return WRONG
    if isinstance(error, SingleBeatError):
        return NO
    if isinstance(error, ImproperlyConfigured):
        return WRONG
    with suppress(Exception):  # without a usable broker URL there is no transport to ask
        connection = app.connection_for_write()
        if isinstance(error, (*connection.connection_errors, *connection.channel_errors)):
            return UNREACHABLE
    return None


def _place(app: Any) -> str:
    from celery_singlebeat.wiring import wire  # noqa: PLC0415 - see the package

    return wire(app).place


def without_secrets(text: str, app: Any) -> str:
    """Texts of other libraries may quote a URL; its password goes."""
    found: set[str] = set()
    with suppress(Exception):  # a configuration that cannot be read keeps its secrets anyway
        found.update(_secrets({key: app.conf[key] for key in app.conf}))
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secrets(inner, str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _secrets(inner, name)
    elif isinstance(value, str):
        passwords = {value} if "password" in name.lower() else set()
        for url in value.split(";") if "://" in value else ():
            with suppress(ValueError):
                passwords.add(urlsplit(url).password or "")
        for password in passwords:
            yield from (text for text in (password, unquote(password)) if len(text) >= _SHORTEST)
