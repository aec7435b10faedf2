"""The variables of services and links in a container, beside the variables of settings."""

import json
from collections.abc import Mapping
from typing import Final

import pytest

from tests.transport.cli.process import Cli
from warren.transport.cli.settings.service_links import service_links


def service(name: str, host: str = "10.96.7.3") -> dict[str, str]:
    """Return the variables that Kubernetes sets for a service with two ports."""
    head, url = name.upper().replace("-", "_"), f"[{host}]" if ":" in host else host
    ports = {"8420_TCP": ("tcp", 8420), "53_UDP": ("udp", 53)}
    found = {
        f"{head}_SERVICE_HOST": host,
        f"{head}_SERVICE_PORT": "8420",
        f"{head}_SERVICE_PORT_HTTP_WEB": "8420",
        f"{head}_PORT": f"tcp://{url}:8420",
    }
    for port, (protocol, number) in ports.items():
        at = f"{head}_PORT_{port}"
        found |= {at: f"{protocol}://{url}:{number}", f"{at}_PROTO": protocol}
        found |= {f"{at}_PORT": str(number), f"{at}_ADDR": host}
    return found


LINK: Final = {
    "WARREN_NODE_PORT": "tcp://172.17.0.5:5432",
    "WARREN_NODE_NAME": "/web/warren-node",
    "WARREN_NODE_ENV_PATH": "/usr/bin",
    "WARREN_SERVE_NAME": "/web/other",
    "WARREN_SERVE_ENV_LC_ALL": "C",
}
SERVICES: Final = ("warren", "warren-serve", "warren-metrics", "warren-limits-turn", "warren-x-service", "warren-db-1")


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("host", ["10.96.7.3", "fd00:10:96::a"])
def test_every_variable_of_a_service_is_recognized(name: str, host: str) -> None:
    """By its form, whatever the service is called and whichever addresses the cluster has."""
    assert service_links(service(name, host)) == list(service(name, host))


def test_every_variable_of_a_link_is_recognized() -> None:
    """The copies of the other container's variables among them, which have no form of their own."""
    assert sorted(service_links(LINK)) == sorted(LINK)


@pytest.mark.parametrize(
    "setting",
    [
        {"WARREN_PORT": "8420"},
        {"WARREN_PORT": "tcp://here:8420"},
        {"WARREN_SERVE_SERVICE_PORT": "http"},
        {"WARREN_SERVE_SERVICE_HOST": "web"},
        {"WARREN_NODE_NAME": "web-1"},
        {"WARREN_SERVE_ENV_PATH": "/usr/bin"},
        {"WARREN_STORE": "/data/warren"},
        {"WARREN_HOST": "10.0.0.1"},
        {"OTHER_PORT": "tcp://10.0.0.1:80"},
    ],
)
def test_a_setting_is_not_taken_for_one(setting: Mapping[str, str]) -> None:
    """A good or a bad value of a setting, or a name that no service can have, stays a matter of the settings."""
    assert service_links(setting) == []


def test_commands_start_beside_the_variables_of_services(cli: Cli) -> None:
    """All settings have their defaults, and stderr has one line about all the variables together."""
    found = LINK | {name: value for each in SERVICES for name, value in service(each).items()}
    shown = cli.run("config", "show", "--output", "json", env=found)
    assert shown.code == 0, shown
    settings = {each["name"]: each["source"] for each in json.loads(shown.out)["settings"]}
    assert {settings[name] for name in ("serve.port", "serve.metrics_port", "serve.node_name")} == {"default"}
    assert shown.err.count("\n") == 1
    assert f"and {len(found) - 2} more" in shown.err


@pytest.mark.parametrize("wrong", [{"WARREN_SERVE_PROT": "8420"}, {"WARREN_PORT": "abc"}, {"WARREN_DRAIN": "soon"}])
def test_a_mistake_beside_them_is_named(cli: Cli, wrong: dict[str, str]) -> None:
    """The command does not start, and says which variable is wrong."""
    ended = cli.run("serve", "--ephemeral", env=service("warren") | service("warren-db") | wrong)
    assert ended.code == 2
    assert next(iter(wrong)) in ended.err.splitlines()[-1]
