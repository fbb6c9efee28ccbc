"""The compose file says what the guide to engines promises: pinned images, loopback only, healthy before it is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fdbqueue.cli.app import app
from tests.helpers import cluster


@pytest.fixture
def services(repository: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((repository / "docker-compose.yml").read_text())
    found: dict[str, Any] = loaded["services"]
    return found


def base_images(repository: Path) -> list[str]:
    dockerfile = (repository / "containers" / "jupyter.Dockerfile").read_text()
    stages = re.findall(r" AS (\S+)$", dockerfile, re.MULTILINE)
    return [image for image in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE) if image not in stages]


def test_every_image_is_pinned_to_a_full_version(services: dict[str, Any], repository: Path) -> None:
    images = [service["image"] for service in services.values()] + base_images(repository)

    assert images
    for image in images:
        assert re.search(r":\d+\.\d+\.\d+", image), image


def test_server_and_client_library_are_of_one_version(services: dict[str, Any], repository: Path) -> None:
    server = services["fdb"]["image"]

    assert server in base_images(repository)
    assert server == cluster.IMAGE


def test_ports_are_published_on_loopback_only(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]

    assert published
    for port in published:
        assert port.startswith("127.0.0.1:"), port


def test_every_service_has_a_health_check(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["healthcheck"]["test"], name


def test_all_others_wait_for_a_configured_cluster(services: dict[str, Any]) -> None:
    assert "configure new single" in " ".join(services["fdb"]["healthcheck"]["test"])
    for name in services.keys() - {"fdb"}:
        assert services[name]["depends_on"]["fdb"]["condition"] == "service_healthy"


def test_the_cluster_alone_needs_no_port_of_another_service(services: dict[str, Any]) -> None:
    assert services["fdb"]["ports"] == ["127.0.0.1:${FDB_PORT:-4500}:${FDB_PORT:-4500}"]
    assert not any("network_mode" in service for service in services.values())


def test_commands_of_services_are_those_of_the_command_line(services: dict[str, Any]) -> None:
    for name in ("web", "metrics"):
        command, verb, *options = services[name]["command"]
        assert command == "fdbqueue"
        found = typer.main.get_group(app).commands[verb]
        known = {option for parameter in found.params for option in parameter.opts}
        assert {option for option in options if option.startswith("--")} <= known


def test_host_and_containers_reach_the_server_at_the_address_it_tells(
    services: dict[str, Any], repository: Path
) -> None:
    fdb = services["fdb"]
    address = f"127.0.0.1:{fdb['environment']['FDB_PORT']}"

    assert fdb["environment"]["FDB_NETWORKING_MODE"] == "host", "so that the server says 127.0.0.1"
    assert fdb["environment"]["FDB_CLUSTER_FILE_CONTENTS"].endswith("@" + address)
    assert (repository / "containers" / "fdb.cluster").read_text().strip().endswith("@127.0.0.1:4500")
    for name in services.keys() - {"fdb"}:
        assert services[name]["environment"]["FDB_PORT"] == "${FDB_PORT:-4500}"
    assert address == "127.0.0.1:${FDB_PORT:-4500}"
    assert f"{address}:${{FDB_PORT:-4500}}" in fdb["ports"]
    forward = (repository / "containers" / "run.sh").read_text()
    assert "port=${FDB_PORT:-4500}\n" in forward
    assert "TCP-LISTEN:$port,bind=127.0.0.1" in forward
    assert "TCP:fdb:$port" in forward
    assert 'ENTRYPOINT ["run"]' in (repository / "containers" / "jupyter.Dockerfile").read_text()


def test_the_containers_of_one_folder_share_a_pid_namespace(repository: Path) -> None:
    page, worker = yaml.safe_load((repository / "containers" / "one-folder.compose.yml").read_text())[
        "services"
    ].values()

    assert worker["pid"] == "service:page"
    assert page["volumes"] == worker["volumes"]
    assert page["image"] == worker["image"]
    assert page["ports"][0].startswith("127.0.0.1:")
