"""A real Prometheus scrapes a switch and its hosts, and each query of the dashboard finds something there."""

import json
import re
import shutil
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.jobs.cluster import LIMIT_S, Cluster, Process, Switch, free_address
from support.pages import blocks, page

DASHBOARD = Path(__file__).parents[3] / "docs" / "operate" / "grafana.json"
PROMETHEUS = shutil.which("prometheus")
# As Grafana fills them in, with all that there is chosen; rates are over more than four scrapes.
VARIABLES = {"$__rate_interval": "5s", "$switch": ".*", "$job_name": ".*"}


def queries() -> Iterator[tuple[str, str]]:
    """Yields the titles of panels and their queries, and the series of which variables are the labels."""
    board = json.loads(DASHBOARD.read_text())
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["label"], re.fullmatch(r"label_values\((\w+), \w+\)", variable["definition"])[1]  # type: ignore[index]
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            yield panel["title"], query


def get(address: str, path: str, **arguments: str) -> Any:
    url = f"http://{address}{path}?{urllib.parse.urlencode(arguments)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def until(condition: Any) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def start_prometheus(cluster: Cluster, folder: Path, targets: list[str]) -> str:
    address = free_address()
    (rules,) = (block.text for block in blocks(page("watching.md")) if "alert:" in block.text)
    (folder / "rules.yml").write_text(rules)
    (folder / "prometheus.yml").write_text(
        json.dumps(  # JSON is YAML
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(folder / "rules.yml")],
                "scrape_configs": [{"job_name": "jax-passing", "static_configs": [{"targets": targets}]}],
            }
        )
    )
    assert PROMETHEUS is not None
    process = Process(
        [
            PROMETHEUS,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={address}",
        ]
    )
    cluster.processes.append(process)
    process.wait_for("Server is ready to receive web requests")
    return address


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus isn't installed (Debian: apt-get install prometheus)")
def test_each_query_of_the_dashboard_finds_series(cluster: Cluster, tmp_path: Path) -> None:
    of_switch, *of_hosts = targets = [free_address() for _ in range(3)]
    switch = Switch("127.0.0.1:0", "--metrics", of_switch)
    cluster.processes.append(switch)
    cluster.switch = switch
    hosts = []
    for rank, address in enumerate(of_hosts):
        env = {"JAX_PASSING_RANK": str(rank), "JAX_PASSING_METRICS": address}
        hosts += cluster.start("faults/endless.py", "60", hosts=1, env={**env, "JAX_PASSING_WORLD_SIZE": "2"})
    for host in hosts:
        host.wait_for("running as process")
    prometheus = start_prometheus(cluster, tmp_path, targets)

    def scraped() -> bool:
        found = get(prometheus, "/api/v1/targets")["data"]["activeTargets"]
        assert all(target["health"] != "down" for target in found), found
        return len(found) == len(targets) and all(target["health"] == "up" for target in found)

    until(scraped)

    def found(query: str) -> list[Any]:
        answer = get(prometheus, "/api/v1/query", query=query)
        assert answer["status"] == "success", (query, answer)
        series: list[Any] = answer["data"]["result"]
        return series

    until(lambda: found("rate(jax_passing_host_tensor_bytes_total[5s]) > 0"))
    time.sleep(3)  # rates need several scrapes
    asked = list(queries())
    assert len(asked) > 25
    assert [(title, query) for title, query in asked if not found(query)] == []
    assert {one["metric"]["rank"] for one in found("jax_passing_switch_rank_silent_seconds")} == {"0", "1"}
    assert {one["metric"]["job_name"] for one in found("jax_passing_host_failed")} == {"endless.py"}
    assert found("up == 0") == []

    def alerts() -> list[dict[str, str]]:
        return [alert["labels"] for alert in get(prometheus, "/api/v1/alerts")["data"]["alerts"]]

    hosts[1].signal(signal.SIGSTOP)
    until(lambda: {"JobStandsStill", "RankIsLate"} <= {alert["alertname"] for alert in alerts()})
    assert {alert["rank"] for alert in alerts() if alert["alertname"] == "RankIsLate"} == {"1"}
    hosts[1].signal(signal.SIGCONT)
    until(lambda: "JobStandsStill" not in {alert["alertname"] for alert in alerts()})


def test_panels_dont_overlap_and_say_what_they_show() -> None:
    taken = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def lost(before: Any, after: Any, at: str = "") -> list[str]:
    """Returns where a document has something that the other one hasn't."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [each for key, value in before.items() for each in lost(value, after.get(key), f"{at}/{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            each for index, pair in enumerate(zip(before, after, strict=True)) for each in lost(*pair, f"{at}/{index}")
        ]
    return [] if before == after else [at]


def test_grafanas_own_types_read_all_of_the_dashboard() -> None:
    """Grafana itself is in no registry from which tests may install. Its makers' types are those of version 10.1."""
    pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk isn't installed")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    board = json.loads(DASHBOARD.read_text())
    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(board)))
    # These types lack what Grafana's own pages write beside a variable's query.
    variables = [f"/templating/list/{index}/definition" for index in (1, 2)]
    assert lost(board, again) == variables
