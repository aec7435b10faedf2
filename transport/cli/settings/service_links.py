"""The variables that a container gets about its neighbors, which may look like settings.

Kubernetes sets some for each service of a namespace, by the name of the service, and `docker run --link` for each
alias: those of a service `warren` or `warren-serve` begin like the variables of settings. They are recognized by their
form, a name and a value that belong together, so a mistake in the variable of a setting stays one.
"""

import re
from collections.abc import Mapping
from typing import Final

PREFIX: Final = "WARREN_"
ADDRESS: Final = r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)"
PROTOCOL: Final = "(?:tcp|udp|sctp)"
PORT: Final = "_PORT_[0-9]+_(?:TCP|UDP|SCTP)"
LINK: Final = "/[^/]+/[^/]+"
"""The value of `ALIAS_NAME`: the names of the two containers."""
FORMS: Final = re.compile(
    rf".+_PORT={PROTOCOL}://(?:{ADDRESS}|\[{ADDRESS}\]):[0-9]+"
    rf"|.+{PORT}={PROTOCOL}://(?:{ADDRESS}|\[{ADDRESS}\]):[0-9]+"
    rf"|.+(?:_SERVICE_HOST|{PORT}_ADDR)={ADDRESS}"
    rf"|.+(?:_SERVICE_PORT(?:_[A-Z0-9_]+)?|{PORT}_PORT)=[0-9]+"
    rf"|.+{PORT}_PROTO={PROTOCOL}"
    rf"|.+_NAME={LINK}"
)


def service_links(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that begin like those of settings, and are about a service or a link."""
    found = [name for name, value in environ.items() if name.startswith(PREFIX) and is_service_link(name, value)]
    # Docker copies the variables of a linked container, which may have any names and values.
    copies = tuple(f"{name.removesuffix('_NAME')}_ENV_" for name in found if name.endswith("_NAME"))
    return [*found, *(name for name in environ if name.startswith(copies))]


def is_service_link(name: str, value: str) -> bool:
    """Tell whether a variable has the form of those about a service, or about the port of a link."""
    return FORMS.fullmatch(f"{name}={value}") is not None


def note_on(names: list[str]) -> str:
    """Return the note that variables are passed over."""
    shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")  # noqa: PLR2004 - two
    return (
        f"no settings, but about a service of Kubernetes or a link of Docker, and passed over: {shown}; "
        "`enableServiceLinks: false` in the pod leaves them out"
    )
