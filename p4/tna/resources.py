# SPDX-License-Identifier: Apache-2.0

"""Prints the program's use of the chip, by the compiler's logs in FOLDER. Usage: resources.py FOLDER"""

import json
import sys
from collections import Counter
from pathlib import Path


def main(folder: Path) -> None:
    logs = folder / "pipe" / "logs"
    resources = json.loads((logs / "resources.json").read_text())["resources"]
    stages = resources["mau"]["mau_stages"]
    device_stages = json.loads((logs / "phv.json").read_text())["nStages"]
    totals: Counter[str] = Counter()
    print("stage  tables  SRAM  (registers')  TCAM  stateful ALUs")
    for stage in stages:
        blocks = stage["rams"]["srams"]
        registers = [block for block in blocks if any(use["used_for"] == "stateful_ram" for use in block["usages"])]
        taken = {
            "tables": len(stage["logical_tables"]["ids"]),
            "SRAM blocks": len(blocks),
            "SRAM blocks of registers": len(registers),
            "TCAM blocks": len(stage["tcams"]["tcams"]),
            "stateful ALUs": len(stage["meter_alus"]["meters"]),
        }
        totals += taken
        print("{:5}".format(stage["stage_number"]), *(f"{number:7}" for number in taken.values()))
    print(f"stages: {len(stages)} of {device_stages}")
    for what, number in totals.items():
        print(f"{what}: {number}")

    taken = Counter((each["container_type"], each["bit_width"]) for each in _containers(logs))
    for kind, groups in resources["phv_containers"].items():
        for group in groups:
            width, units = group["width"], group["units"]
            print(f"PHV containers, {kind}, {width} bits: {taken[kind, width]} of {units}")


def _containers(logs: Path) -> list[dict]:
    """Lists the ones in use, each once."""
    containers = json.loads((logs / "phv.json").read_text())["containers"]
    return list({each["phv_number"]: each for each in containers}.values())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
