"""The text of a compiled module tells its fingerprint, and the streams of its sums."""

import collections
import hashlib
import json
import re
from typing import Any

import jax

from jax_passing._compat import process
from jax_passing.collective.naming.sum_spec import beginning, values_of

_CALL = 'custom_call_target="passing_(?:psum(?:_start)?|early|equal)"'  # of a sum, by FFI


def fingerprint_of_module(program: str, ordinal: int) -> str | None:
    """Returns a digest of the newest executable of a module, and a summary for people:
    "<sha256> 14 fusion, 3 dot; (f32[4,8])->f32[4]". None if there is none.

    The text is that of the scheduled module, after all of XLA's passes: it decides in which order XLA makes the copies
    of a call. The digest leaves out where sources lie, and the ordinal.
    """
    of_module = re.compile(_CALL + rf'[^\n]*\bspec = "{re.escape(_escaped(beginning(program, ordinal)))}')
    for device in (jax.local_devices(backend="cpu")[0], *process.cuda_devices()[:1]):
        for executable in device.client.live_executables():
            for module in executable.hlo_modules():
                text = module.to_string()
                if of_module.search(text):
                    return _digest(text)
    return None


STREAM = "passing_stream"  # the attribute of a call of Python that sums: the stream, as `stream_text` writes it


def stream_text(stream: str) -> str:
    return "x" + stream.encode().hex()


def streams(compiled: Any) -> frozenset[str]:
    """Returns the streams of the sums of a `jax.stages.Compiled`, as XLA kept them."""
    text = compiled.as_text() or ""
    by_host_calls = (bytes.fromhex(each).decode() for each in re.findall(rf'\b{STREAM}="x([0-9a-f]*)"', text))
    return frozenset([*(identity["stream"] for identity in _identities(text)), *by_host_calls])


def _identities(text: str) -> list[dict[str, Any]]:
    """Returns what tells the sums apart that are called by FFI."""
    specs = re.findall(_CALL + r'[^\n]*?\bspec = "((?:[^"\\]|\\.)*)"', text)
    return [json.loads(values_of(_unescaped(spec))["identity"]) for spec in specs]


# MLIR writes a backslash as two, and quotes and line breaks by their code.


def _escaped(text: str) -> str:
    return re.sub(r'[\\"\n]', lambda match: "\\\\" if match[0] == "\\" else f"\\{ord(match[0]):02X}", text)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(\\|[0-9A-F]{2})", lambda match: "\\" if match[1] == "\\" else chr(int(match[1], 16)), text)


def _digest(text: str) -> str:
    text = re.sub(r", metadata=\{[^{}]*\}", "", text)
    text = re.sub(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r'(?<=\bspec = ")ordinal=\d+', "", text)
    operations = collections.Counter(re.findall(r" = (?:\([^=]*?\)|\S+) ([a-z][\w-]*)\(", text))
    counts = ", ".join(f"{count} {name}" for name, count in sorted(operations.items()))
    layout = re.search(r"entry_computation_layout=\{(.*?)\}(?:,|$)", text, re.MULTILINE)
    shapes = re.sub(r"\{[\d,]*\}", "", layout[1])[:400] if layout else ""
    return f"{hashlib.sha256(text.encode()).hexdigest()} {counts}; {shapes}"
