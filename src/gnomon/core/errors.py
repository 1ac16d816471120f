"""One tree of user errors: what was wrong, where, and what would be right.

The command line prints a `GnomonError` as one paragraph and exits with code 2. Broken invariants are
`AssertionError`s instead: those are our faults, not the user's.
"""

import difflib
from collections.abc import Iterable

DISTRIBUTION = "gnomon-sim"  # What Gnomon is called where packages are installed from.

MOST_LISTED = 40  # Names in an error: nobody reads more.


class GnomonError(Exception):
    """A mistake in what the user gave us.

    `what` says what is wrong, `where` the file, line or key, and `fix` what would be right.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(" ".join(part for part in (f"{where}: {what}" if where else what, fix) if part))


class ConfigError(GnomonError):
    """A scenario, a search space or a command line that cannot be used as it stands."""


class UnknownNameError(GnomonError):
    """A name that no registry or catalog knows."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str | None = None) -> None:
        names = sorted(known)
        near = nearest(name, names)
        guess = f"Did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
        if "," in name:
            guess = "It is one name here; `gnomon compare --vary` takes several. "
        listing = f"Known: {', '.join(names)}." if names else f"There is no {kind} yet."
        if len(names) > MOST_LISTED:
            listing = f"There are {len(names)}; some of them: {', '.join(names[:: len(names) // 8 + 1])}."
        given = repr(name) if len(name) <= 100 else f"{name[:100]!r}..."
        super().__init__(f"unknown {kind} {given}.", where=where, fix=f"{guess}{listing}")


class DataError(GnomonError):
    """A profile, trace, schedule or recorded run that cannot be read."""


class DoesNotFitError(GnomonError):
    """A model that does not fit into the memory it was given."""


class MissingExtraError(GnomonError):
    """A feature whose optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs a package that is not installed.", fix=f"Run: {install_command(extra)}")


def install_command(extra: str) -> str:
    """The command that adds an extra to Gnomon, as it was installed: from a folder, or from an index."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from shlex import quote
    from urllib.parse import unquote, urlsplit

    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    origin = json.loads(text) if text else {}
    if "dir_info" not in origin:
        return f"pip install '{DISTRIBUTION}[{extra}]'"
    flag = "-e " if origin["dir_info"].get("editable") else ""
    return f"cd {quote(unquote(urlsplit(origin['url']).path))} && pip install {flag}'.[{extra}]'"


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that look most like `name`, best first."""
    if len(name) > 200:  # Nobody's typing; and comparing takes its square.
        return []
    by_folded = {k.casefold(): k for k in known}
    return [by_folded[k] for k in difflib.get_close_matches(name.casefold(), by_folded, n=count, cutoff=0.5)]
