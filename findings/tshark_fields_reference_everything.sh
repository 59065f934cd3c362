#!/bin/bash
# Wireshark lets a dissector in Lua leave out fields that nobody asked for: TreeItem:referenced(field). With
# `tshark -T fields -e demo.count` one asks for one field by name, and yet `referenced` is true for all others, too, as
# the tree is "visible" then: so a dissector that adds thousands of costly fields only if they are referenced adds them
# all, and its author's care is of no use just where captures are turned into tables. Seen with tshark 4.0.17 (Debian
# 12). Our dissector (xla_ffi/wire/passing.lua) has a preference for each packet's lanes instead: 10,000 packets of 360
# lanes take 1.8 s without them, and 20 s with them.
set -euo pipefail
command -v tshark >/dev/null || { echo "install tshark first: apt-get install tshark" >&2; exit 1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
tshark --version 2>/dev/null | head -1

cat >demo.lua <<'LUA'
local demo = Proto("demo", "Demo")
local count, costly = ProtoField.uint8("demo.count", "Count"), ProtoField.uint8("demo.costly", "Costly")
demo.fields = { count, costly }
function demo.dissector(buffer, pinfo, root)
  local tree = root:add(demo, buffer())
  tree:add(count, buffer(0, 1))
  io.stderr:write("costly is referenced: ", tostring(tree:referenced(costly)), "\n")
end
DissectorTable.get("udp.port"):add(4242, demo)
LUA
python3 - <<'PYTHON'
import struct
udp = struct.pack("!HHHH", 5000, 4242, 9, 0) + b"\7"
ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + bytes([10, 0, 0, 1, 10, 0, 0, 2]) + udp
with open("one.pcap", "wb") as out:
    out.write(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101))
    out.write(struct.pack("=IIII", 0, 0, len(ip), len(ip)) + ip)
PYTHON

told() { tshark -X lua_script:demo.lua -r one.pcap "$@" 2>&1 >/dev/null | grep -o 'costly is referenced: .*' | tail -1; }
filtered=$(told -Y 'demo.count == 7')
wanted=$(told -T fields -e demo.costly)
fields=$(told -T fields -e demo.count)
echo "-Y 'demo.count == 7':     $filtered"
echo "-T fields -e demo.costly: $wanted"
echo "-T fields -e demo.count:  $fields   <- nobody asked for it"
[ "$filtered" = "costly is referenced: false" ]
[ "$wanted" = "costly is referenced: true" ]
[ "$fields" = "costly is referenced: true" ]
