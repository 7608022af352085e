"""The plain manifests: valid on every supported cluster, restricted, at one with the settings."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shared.runtime.settings import MIB, Settings, load_settings, unknown_variables

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "k8s" / "manifests"
#: The oldest and the newest release that the validator knows and we name.
CLUSTERS = ["1.30", "1.33", "1.37"]
SERVICES = [
    "api",
    "backup",
    "delete",
    "notify",
    "origin",
    "replica",
    "restore",
    "review",
    "scheduler",
    "upload",
]


def _documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def _all() -> list[dict[str, Any]]:
    paths = sorted(FOLDER.glob("*.yaml"))
    return [d for path in paths if path.name != "kustomization.yaml" for d in _documents(path)]


def _named(kind: str, name: str) -> dict[str, Any]:
    found = [d for d in _all() if d["kind"] == kind and d["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind} {name}: {len(found)} of them"
    return found[0]


def _label(document: dict[str, Any]) -> str:
    return f"{document['kind']}-{document['metadata']['name']}"


def _pods() -> list[Any]:
    """Return every pod template with the name of what owns it."""
    owners = [d for d in _all() if d["kind"] in {"Deployment", "Job"}]
    assert len(owners) == len(SERVICES) + 1
    return [pytest.param(d["spec"]["template"]["spec"], id=_label(d)) for d in owners]


def _environment() -> dict[str, str]:
    secret = _named("Secret", "blox-secrets")["stringData"]
    return {**_named("ConfigMap", "blox-config")["data"], **secret}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("document", _all(), ids=_label)
def test_manifest_is_valid(document: dict[str, Any], cluster: str) -> None:
    kubernetes_validate.validate(document, cluster, strict=True)


def test_the_validator_refuses_a_misspelt_field() -> None:
    document = _named("Deployment", "blox-upload")
    document["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 75
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriodSecond"):
        kubernetes_validate.validate(document, CLUSTERS[0], strict=True)


def test_kustomization_lists_every_manifest_but_the_example_secret() -> None:
    (kustomization,) = _documents(FOLDER / "kustomization.yaml")
    files = {path.name for path in FOLDER.glob("*.yaml")}
    assert set(kustomization["resources"]) == files - {"kustomization.yaml", "secret.example.yaml"}


def test_kustomize_renders_them_with_the_tag() -> None:
    # From its package, beside this Python: the machine's own may be missing or another.
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run(
        [kubectl, "kustomize", str(FOLDER)], capture_output=True, text=True, check=True
    )
    rendered = [document for document in yaml.safe_load_all(done.stdout) if document]
    assert sorted(map(_label, rendered)) == sorted(
        _label(d) for d in _all() if d["kind"] != "Secret"
    )
    images = {
        container["image"]
        for document in rendered
        if document["kind"] in {"Deployment", "Job"}
        for container in document["spec"]["template"]["spec"]["containers"]
    }
    assert len(images) == 1
    assert re.fullmatch(r"cloudblox:\d+\.\d+\.\d+", images.pop())
    namespaced = [d for d in rendered if d["kind"] != "Namespace"]
    assert {d["metadata"]["namespace"] for d in namespaced} == {"blox"}


@pytest.mark.parametrize("pod", _pods())
def test_pod_fits_the_restricted_profile(pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for container in pod["containers"]:
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
    allowed = {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "projected"}
    assert all(volume.keys() - {"name"} <= allowed for volume in pod["volumes"])


@pytest.mark.parametrize("pod", _pods())
def test_service_links_do_not_become_settings(pod: dict[str, Any]) -> None:
    # A Service blox-api would put BLOX_API_PORT=tcp://... into every pod of the namespace.
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize("pod", _pods())
def test_command_is_a_module_of_ours_without_a_shell(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    program, flag, module, *_ = container["command"]
    assert (program, flag) == ("python3", "-m")
    assert importlib.util.find_spec(f"{module}.__main__") is not None


@pytest.mark.parametrize("service", SERVICES)
def test_grace_is_the_shutdown_time_and_fifteen_seconds(service: str) -> None:
    pod = _named("Deployment", f"blox-{service}")["spec"]["template"]["spec"]
    shutdown_seconds = float(_environment()["BLOX_SHUTDOWN_SECONDS"])
    assert pod["terminationGracePeriodSeconds"] == shutdown_seconds + 15


@pytest.mark.parametrize("service", SERVICES)
def test_probes_ask_the_health_port(service: str) -> None:
    deployment = _named("Deployment", f"blox-{service}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["health"] == int(_environment()["BLOX_HEALTH__PORT"])
    for probe, path in [("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")]:
        asked = container[f"{probe}Probe"]["httpGet"]
        assert asked == {"path": path, "port": "health"}, probe
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["health"])


@pytest.mark.parametrize("service", SERVICES)
def test_selectors_meet_the_pods(service: str) -> None:
    deployment = _named("Deployment", f"blox-{service}")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    budget = _named("PodDisruptionBudget", f"blox-{service}")["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["maxUnavailable"] == 1  # minAvailable 1 of one replica would block a node drain


def test_the_service_reaches_the_api() -> None:
    service = _named("Service", "blox-api")["spec"]
    template = _named("Deployment", "blox-api")["spec"]["template"]
    assert service["selector"] == template["metadata"]["labels"]
    ports = {p["name"]: p["containerPort"] for p in template["spec"]["containers"][0]["ports"]}
    assert ports[service["ports"][0]["targetPort"]] == int(_environment()["BLOX_API__PORT"])


def test_every_setting_is_known_and_valid() -> None:
    environment = _environment()
    assert unknown_variables(environment) == []
    settings = load_settings(environment)
    assert isinstance(settings, Settings)
    assert settings.deployment == "kubernetes"
    assert settings.staging.shared, "node-local staging is refused with more than one pod"


@pytest.mark.parametrize("service", SERVICES)
def test_staging_is_the_shared_volume(service: str) -> None:
    pod = _named("Deployment", f"blox-{service}")["spec"]["template"]["spec"]
    claims = {
        v["name"]: v["persistentVolumeClaim"]["claimName"]
        for v in pod["volumes"]
        if "persistentVolumeClaim" in v
    }
    mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
    claim = claims[mounts[_environment()["BLOX_STAGING__PATH"]]]
    assert _named("PersistentVolumeClaim", claim)["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("service", SERVICES)
def test_parts_of_slow_bodies_fit_into_the_folder_for_temporary_files(service: str) -> None:
    """Staging in a bucket keeps them there; a pod with more than its volume may hold is evicted."""
    pod = _named("Deployment", f"blox-{service}")["spec"]["template"]["spec"]
    mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
    (volume,) = (v for v in pod["volumes"] if v["name"] == mounts["/tmp"])
    size = volume["emptyDir"]["sizeLimit"]
    assert size.endswith("Mi")
    # Parts that have left the count may still be written for a moment.
    assert int(size[:-2]) * MIB >= 1.5 * load_settings(_environment()).staging.disk_bytes


def test_no_secret_stands_in_the_configuration() -> None:
    configuration = _named("ConfigMap", "blox-config")["data"]
    assert not [name for name in configuration if re.search("URL|KEY|PASSWORD|TOKEN", name)]


def test_dockerfile_runs_as_the_user_of_the_manifests_in_exec_form() -> None:
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    assert "USER 10001:10001" in lines
    assert "HEALTHCHECK NONE" in lines
    for word in ("ENTRYPOINT", "CMD"):
        assert [
            line for line in lines if line.startswith(word) and not line.startswith(f"{word} [")
        ] == []
    assert any("--require-hashes" in line for line in lines)
    bases = [line.split()[1] for line in lines if line.startswith("FROM")]
    assert set(bases) <= {"${BASE}"}
