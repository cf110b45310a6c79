"""The address of an SQLite file, as SQLAlchemy takes it, which MLflow and Optuna use."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL, make_url


def sqlite_address(file: Path) -> str:
    """The address of a file, whatever its name is.

    Raises:
      ValueError: SQLAlchemy has no address for it.

    Example:
      >>> from sqlalchemy.engine import make_url
      >>> make_url(sqlite_address(Path("/tmp/a%20b/study.db"))).database
      '/tmp/a%20b/study.db'
    """
    path = str(file.resolve())
    try:
        url = URL.create("sqlite", database=path).render_as_string()
    except UnicodeEncodeError:  # a name that is no text
        url = "sqlite://"
    if make_url(url).database != path:  # SQLAlchemy 2.0 has no way to write a "?"
        raise ValueError(
            f"SQLAlchemy has no address for the name {path!r}; choose another folder"
        )
    return url
