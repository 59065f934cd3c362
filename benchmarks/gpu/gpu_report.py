"""The report of benchmarks/gpu/gpu.py in Markdown: what was measured and why something wasn't."""

from collections.abc import Callable, Iterable
from typing import Any

Entry = dict[str, Any]

# The aims of the project; the report says beside each figure whether it reaches them.
COPY_SHARE, HIDDEN_SHARE, BEYOND_MEBIBYTES, START_US = 0.85, 0.90, 64, 20
LEAST_SHARE = 0.1  # of communication in computation: what is hidden of less is lost in the noise


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    head = list(columns)
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(str(cell) for cell in line)} |" for line in lines] + [""]


def hosts_of(entry: Entry) -> str:
    return " + ".join({"cuda": "GPU", "cpu": "CPU"}[platform] for platform in entry["platforms"])


def ran(report: Entry, name: str) -> list[Entry]:
    return [entry for entry in report["parts"] if entry["name"] == name and entry["status"] == "ran"]


def aim(is_reached: bool, text: str) -> str:
    return f"{'reached' if is_reached else 'MISSED'}: {text}"


# --- correctness


def other_bits(report: Entry) -> list[tuple[str, str, str]]:
    """(hosts, dtype, kind) whose bits differ from those that as many CPU hosts have."""
    runs = ran(report, "sums")
    found = []
    for reference in (entry for entry in runs if set(entry["platforms"]) == {"cpu"}):
        bits = {(row["dtype"], row["kind"]): row["digest"] for row in reference["result"]}
        for entry in (entry for entry in runs if len(entry["platforms"]) == len(reference["platforms"])):
            for row in entry["result"]:
                if row["digest"] != bits[row["dtype"], row["kind"]]:
                    found.append((hosts_of(entry), row["dtype"], row["kind"]))
    return found


def of_sums(report: Entry) -> list[str]:
    lines, differing = ["### Every dtype, against numpy", ""], other_bits(report)
    references = {len(entry["platforms"]) for entry in ran(report, "sums") if set(entry["platforms"]) == {"cpu"}}
    rows = []
    for entry in ran(report, "sums"):
        cases, hosts = entry["result"], hosts_of(entry)
        alike = "yes" if len(entry["platforms"]) in references else "left out: no run of CPU hosts"
        if set(entry["platforms"]) == {"cpu"}:
            alike = "these are"
        others = [f"{dtype} ({kind})" for name, dtype, kind in differing if name == hosts]
        rows.append(
            (
                hosts,
                len({row["dtype"] for row in cases}),
                f"{sum(row['elements'] for row in cases):,}",
                sum(row["wrong"] for row in cases),
                "NO" if any(row["hosts_differ"] for row in cases) else "yes",
                f"NO: {', '.join(others)}" if others else alike,
            )
        )
    columns = ("hosts", "dtypes", "elements", "wrong", "same bits on all hosts", "same bits as CPU hosts")
    lines += table(columns, rows) if rows else []
    wrong = [(hosts_of(entry), row) for entry in ran(report, "sums") for row in entry["result"] if row["wrong"]]
    return lines + [f"- wrong: {row['wrong']} of {row['dtype']}, {row['kind']}, {hosts}" for hosts, row in wrong]


def of_errors(report: Entry) -> list[str]:
    rows = [
        (
            hosts_of(entry),
            found["raised"],
            f"{found['raised_s']:.2f} s",
            found["device_computes"],
            found["next_session_sums"],
            f"{found['device_bytes_kept'] / 2**20:.1f} MiB",
        )
        for entry in ran(report, "errors")
        for found in [entry["result"]]
    ]
    columns = ("hosts", "raised", "after", "the device computes on", "the next session sums rightly", "memory kept")
    note = (
        "What was summed had 16 MiB of the device; memory kept is what XLA didn't give back when the execution failed."
    )
    return ["### Hosts whose programs differ", "", note, "", *table(columns, rows)] if rows else []


def of_programs(report: Entry) -> list[str]:
    """Each of them compares with numpy itself, and fails if something is wrong."""
    rows = [
        (name, hosts_of(entry), f"{entry['seconds']:.0f} s")
        for name in ("held", "loops", "branches", "order", "threads")
        for entry in ran(report, name)
    ]
    return ["### Programs that check themselves", "", *table(("program", "hosts", "took"), rows)] if rows else []


def of_growth(report: Entry) -> list[str]:
    rows = []
    for entry in ran(report, "growth"):
        found = entry["result"]
        for name in found["settled"]:
            settled, end = found["settled"][name], found["end"][name]
            grown = f"{end / settled - 1:+.2%}" if settled else "not known on this device"
            rows.append((hosts_of(entry), f"{found['steps']:,}", name.replace("_", " "), settled, end, grown))
    columns = ("hosts", "steps", "what a host holds", "after step 1,000", "at the end", "growth")
    return ["### Growth over many steps", "", *table(columns, rows)] if rows else []


def of_memory(report: Entry) -> list[str]:
    lines = []
    for entry in ran(report, "memory"):
        found = entry["result"]
        if "left_out" in found:
            lines.append(f"Memory of the device: left out, {found['left_out']}.")
            continue
        beyond = found["beyond_bytes"] / 2**20
        reached = aim(beyond <= BEYOND_MEBIBYTES, f"at most {BEYOND_MEBIBYTES} MiB are wanted")
        lines.append(
            f"Memory of the device beyond the caller's {found['caller_bytes'] / 2**20:.0f} MiB, {hosts_of(entry)}: "
            f"{beyond:.1f} MiB at the peak ({reached}). That is XLA's memory; the driver's isn't in it."
        )
    return ["### Memory", "", *lines, ""] if lines else []


# --- figures


def of_copies(report: Entry) -> list[str]:
    rows = []
    for entry in ran(report, "copies"):
        for row in entry["result"]:
            size = row["bytes"]
            cells = [hosts_of(entry), row["dtype"], f"{size / 2**20:.0f} MiB", f"{size / row['psum_s'] / 1e9:.2f} GB/s"]
            for way in ("out", "in"):
                copy_s = row[f"copy_{way}_s"]
                cells += [f"{size / copy_s / 1e9:.2f} GB/s", f"{copy_s / row['psum_s']:.0%}"]
            rows.append(cells)
    columns = ("hosts", "dtype", "size", "psum", "copy to pinned memory", "share", "copy from it", "share")
    note = (
        "A sum of one host has neither network nor fixed point: only copies remain, there and back at once. "
        f"Wanted is {COPY_SHARE:.0%} of each rate. The copies beside them are JAX's, between the device and memory of "
        "kind pinned_host. Medians."
    )
    return ["### Copies", "", note, "", *table(columns, rows)] if rows else []


def of_pipeline(report: Entry) -> list[str]:
    lines = []
    for entry in ran(report, "pipeline"):
        lines += ["```text", *entry["result"], "```", ""]
    note = (
        "Without JAX and without a network, but with all that a host computes: each stage alone, and the three at "
        "once, as a multiple of the longest (benchmarks/micro/gpu_pipeline_benchmark.cc). Wanted is "
        f"{COPY_SHARE:.0%} of the rate of copies: so that these are the longest, and all at once take little more."
    )
    return ["### Copies and fixed point", "", note, "", *lines] if lines else []


def of_call(report: Entry) -> list[str]:
    rows = [
        (
            hosts_of(entry),
            *(f"{entry['result']['psum'][name]:.0f} us" for name in ("us", "fastest_us", "dispatch_us")),
            *(f"{entry['result']['local'][name]:.0f} us" for name in ("us", "dispatch_us")),
        )
        for entry in ran(report, "call")
    ]
    columns = ("hosts", "psum of 1 KB", "fastest", "until dispatched", "local operation instead", "until dispatched")
    return ["### A small call", "", *table(columns, rows)] if rows else []


def of_overlap(report: Entry) -> list[str]:
    rows = []
    for entry in ran(report, "overlap"):
        overlap_s, apart_s, alone_s = (entry["result"][name] for name in ("overlap", "apart", "no sums"))
        sums_s = apart_s - alone_s
        if sums_s > LEAST_SHARE * alone_s:
            hidden = f"{(apart_s - overlap_s) / min(alone_s, sums_s):.0%}"
        else:
            hidden = "left out: too little communication"
        times = (f"{1e3 * seconds:.2f} ms" for seconds in (alone_s, apart_s, overlap_s))
        rows.append((hosts_of(entry), *times, f"{sums_s / alone_s:.2f}", hidden))
    columns = ("hosts", "no sums", "apart", "overlap", "communication / computation", "hidden")
    note = (
        "A step of GPT-2 (examples/train_gpt2.py; small on a GPU, tiny on CPUs) without any sum; apart, with the sums "
        "in a program of their own after the gradients'; and with overlap: medians of steps that take turns. "
        "Communication is (apart - no sums), hidden (apart - overlap) / the smaller of communication and computation; "
        f"wanted are {HIDDEN_SHARE:.0%} where both are about as long. Hosts on one card share its computing, too."
    )
    return ["### Overlap", "", note, "", *table(columns, rows)] if rows else []


def of_train(report: Entry) -> list[str]:
    lines = ["### examples/train_gpt2.py", ""]
    for entry in ran(report, "train"):
        lines += [f"{hosts_of(entry)}:", "", "```text", *entry["result"], "```", ""]
    return lines if len(lines) > 2 else []


def of_profile(report: Entry) -> list[str]:
    lines = ["## Profile", ""]
    for entry in ran(report, "profile"):
        found = entry["result"]
        if "left_out" in found:
            lines += [f"Left out: {found['left_out']}.", ""]
            continue
        lines += [f"Five steps with overlap, {hosts_of(entry)}; the trace is {found['trace']}, for Perfetto.", ""]
        streams = found["streams"].items()
        rows = [(name, f"{ms['kernels_ms']:.2f} ms", f"{ms['copies_ms']:.2f} ms") for name, ms in streams]
        lines += table(("stream", "kernels", "copies"), rows)
        if found["copies_ms"]:
            share = found["copies_beside_kernels_ms"] / found["copies_ms"]
            lines += [f"Of {found['copies_ms']:.2f} ms of copies {share:.0%} ran beside kernels.", ""]
        if starts := found["starts"]:
            reached = aim(starts["us"] <= START_US, f"at most {START_US} us are wanted")
            lines += [
                f"To start a sum took the host {starts['us']:.1f} us (median of {starts['count']}, the slowest "
                f"{starts['slowest_us']:.1f} us; {reached}).",
                "",
            ]
    return lines if len(lines) > 2 else []


# --- the whole


def is_right(report: Entry) -> bool:
    """Nothing failed or was wrong. Figures don't count."""
    sums = [row for entry in ran(report, "sums") for row in entry["result"]]
    errors = [entry["result"] for entry in ran(report, "errors")]
    return (
        all(entry["status"] != "failed" for entry in report["parts"])
        and not any(row["wrong"] or row["hosts_differ"] for row in sums)
        and not other_bits(report)
        and all(entry["result"]["right"] for entry in ran(report, "threads"))
        and all(
            found["raised"] == "ProgramMismatchError" and found["device_computes"] and found["next_session_sums"]
            for found in errors
        )
    )


def verdict(report: Entry) -> str:
    count = dict.fromkeys(("ran", "failed", "left out"), 0)
    for entry in report["parts"]:
        count[entry["status"]] += 1
    told = ", ".join(f"{number} {status}" for status, number in count.items())
    return f"{told}; {'nothing that ran was wrong' if is_right(report) else 'SOMETHING IS WRONG'}"


def of_the_rest(report: Entry) -> list[str]:
    """Returns the section on what failed, and what was left out."""
    lines = []
    failed = [entry for entry in report["parts"] if entry["status"] == "failed"]
    if failed:
        lines += ["## Failed", ""]
    for entry in failed:
        lines += [f"{entry['name']}, {hosts_of(entry)}: {entry['reason']}.", "", "```text", entry["output"], "```", ""]
    without = [entry for entry in report["parts"] if entry["status"] == "left out"]
    if without:
        lines += ["## Left out", ""]
        rows = ((entry["name"], hosts_of(entry), entry["reason"]) for entry in without)
        lines += table(("part", "hosts", "why"), rows)
    return lines


CORRECTNESS: tuple[Callable[[Entry], list[str]], ...] = (of_sums, of_errors, of_programs, of_growth, of_memory)
FIGURES: tuple[Callable[[Entry], list[str]], ...] = (of_copies, of_pipeline, of_call, of_overlap, of_train)


def markdown(report: Entry) -> str:
    here = report["machine"]
    versions = ", ".join(f"{package} {number}" for package, number in here["versions"].items())
    lines = [
        f"# jax_passing on {here['gpu'] or 'a machine without a GPU'}",
        "",
        f"{here['date']}, commit {here['commit'] or 'unknown'}. {here['cores']} cores of {here['processor']}, Python "
        f"{here['python']}, {versions}; JAX computes on: {here['backend']}"
        f"{' (' + here['why_no_gpu'] + ')' if here['why_no_gpu'] else ''}. Parts: {verdict(report)}.",
        "",
    ]
    lines += ["## Correctness", "", *(line for part in CORRECTNESS for line in part(report))]
    lines += ["## Figures", "", *(line for part in FIGURES for line in part(report))]
    return "\n".join([*lines, *of_profile(report), *of_the_rest(report)])
