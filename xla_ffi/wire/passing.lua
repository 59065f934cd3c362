-- Wireshark dissector for the packets of docs/internals/protocol.md.
--
--   wireshark -X lua_script:xla_ffi/wire/passing.lua        (or copy it to the personal Lua plugins folder)
--   tshark -2 -X lua_script:xla_ffi/wire/passing.lua -r FILE -Y passing
--
-- UDP ports 7170 (multicast groups) and 7171 (switch) by preference, packets of any other port by their look. One
-- datagram may hold many packets: machines that offload segmentation capture them before they are cut apart. Of a frame
-- that was captured in part (tcpdump -s, editcap -s) the part is shown. Lanes are shown one by one if the preference says
-- so (-o passing.lanes:TRUE): that takes most of the time.

local passing = Proto("passing", "PASSING all-reduce")

local HEADER_BYTES, MAGIC, PROTOCOL, LANES_MAX, EVERY_WORKER, WORKERS_MAX = 20, 0x9a, 1, 2232, 0xffff, 64
local CONTRIBUTION, RESULT, PROBE = 1, 2, 3
local TAGGED, TAG_BYTES = 0x80, 8
local TYPES = { [CONTRIBUTION] = "contribution", [RESULT] = "result", [PROBE] = "probe" }
local SUM, MAXIMUM = 1, 2
local FORMATS = { [SUM] = "sum", [MAXIMUM] = "signed maximum" }

local f = {
  magic = ProtoField.uint8("passing.magic", "Magic", base.HEX),
  protocol = ProtoField.uint8("passing.protocol", "Protocol version"),
  type = ProtoField.uint8("passing.type", "Packet type", base.DEC, TYPES, 0x7f),
  tagged = ProtoField.bool("passing.tagged", "Ends with a tag", 8, nil, TAGGED),
  flags = ProtoField.uint8("passing.flags", "Flags", base.HEX),
  nan = ProtoField.bool("passing.flags.nan", "NaN", 8, nil, 0x01),
  pos_inf = ProtoField.bool("passing.flags.pos_inf", "+Inf", 8, nil, 0x02),
  neg_inf = ProtoField.bool("passing.flags.neg_inf", "-Inf", 8, nil, 0x04),
  bare = ProtoField.bool("passing.flags.bare", "Lanes are left out", 8, nil, 0x08),
  no_result = ProtoField.bool("passing.flags.no_result", "No lanes of the result are needed", 8, nil, 0x10),
  job = ProtoField.uint16("passing.job", "Job"),
  epoch = ProtoField.uint16("passing.epoch", "Epoch"),
  worker = ProtoField.uint16("passing.worker", "Worker"),
  slot = ProtoField.uint16("passing.slot", "Slot"),
  sequence = ProtoField.uint32("passing.sequence", "Sequence"),
  version = ProtoField.uint8("passing.version", "Version"),
  lane_format = ProtoField.uint8("passing.lane_format", "Lane format", base.DEC, FORMATS),
  element_count = ProtoField.uint16("passing.element_count", "Element count"),
  lanes = ProtoField.bytes("passing.lanes", "Lanes"),
  lane = ProtoField.int32("passing.lane", "Lane"),
  tag = ProtoField.bytes("passing.tag", "Tag"),
  malformed = ProtoField.string("passing.malformed", "Malformed"),
  result_in = ProtoField.framenum("passing.result_in", "Result in", base.NONE, frametype.RESPONSE),
  contribution_in = ProtoField.framenum("passing.contribution_in", "Contribution in", base.NONE, frametype.REQUEST),
  sum_time = ProtoField.relative_time("passing.sum_time", "Time from this host's contribution to the result"),
  first_in = ProtoField.framenum("passing.first_in", "First sent in", base.NONE, frametype.RETRANS_PREV),
}
local e = {
  malformed = ProtoExpert.new("passing.malformed.expert", "Malformed packet", expert.group.MALFORMED, expert.severity.ERROR),
  worker = ProtoExpert.new("passing.worker.expert", "No such worker", expert.group.PROTOCOL, expert.severity.WARN),
  again = ProtoExpert.new("passing.again.expert", "Sent again", expert.group.SEQUENCE, expert.severity.NOTE),
}
passing.fields, passing.experts = {}, {}
for _, field in pairs(f) do table.insert(passing.fields, field) end
for _, one in pairs(e) do table.insert(passing.experts, one) end

passing.prefs.lanes = Pref.bool("Show each lane", false, "Adds passing.lane, which makes everything many times slower")

-- How many bytes of the packet at `offset`, and of what follows it, were sent, and how many of them were captured.
local function sent_bytes(buffer, offset) return buffer:reported_len() - offset end
local function captured_bytes(buffer, offset) return buffer:captured_len() - offset end

local function tag_bytes(buffer, offset) return buffer(offset + 2, 1):uint() >= TAGGED and TAG_BYTES or 0 end

-- The flag of a packet whose lanes are left out is 8.
local function lanes_carried(buffer, offset)
  local is_bare = math.floor(buffer(offset + 3, 1):uint() / 8) % 2 == 1
  return is_bare and 0 or buffer(offset + 18, 2):uint()
end

-- What is wrong with the packet at `offset`, as far as its header was captured: a name of xla_ffi/wire/header.h, or nil.
local function problem(buffer, offset)
  local bytes, captured = sent_bytes(buffer, offset), captured_bytes(buffer, offset)
  if bytes < HEADER_BYTES then return "too_short" end
  if captured < HEADER_BYTES then return nil end
  local function byte(at) return buffer(offset + at, 1):uint() end
  if byte(0) ~= MAGIC then return "bad_magic" end
  if byte(1) ~= PROTOCOL then return "bad_protocol_version" end
  if not TYPES[byte(2) % TAGGED] then return "bad_type" end
  if byte(3) > (byte(17) == MAXIMUM and 7 or 31) then return "bad_flags" end
  if byte(16) > 1 then return "bad_version" end
  if not FORMATS[byte(17)] then return "bad_lane_format" end
  local count = buffer(offset + 18, 2):uint()
  if count == 0 or count > LANES_MAX then return "bad_element_count" end
  local own = HEADER_BYTES + 4 * lanes_carried(buffer, offset) + tag_bytes(buffer, offset)
  local rest = bytes - own
  if rest < 0 then return "bad_length" end
  -- What follows is another packet, or it is too much.
  if rest > 0 and (rest < 2 or (captured > own and byte(own) ~= MAGIC)) then return "bad_length" end
  return nil
end

-- Contributions and results of a chunk find each other. Frames are dissected in order once (`visited` is false then),
-- later in any order.
local chunks, sent_again

function passing.init()
  chunks, sent_again = {}, {}
end

-- A chunk at a host: `switch` and `host` are address and port.
local function chunk_of(buffer, offset, switch)
  local numbers = buffer(offset + 4, 4):bytes():tohex() .. buffer(offset + 10, 7):bytes():tohex()
  local key = switch .. " " .. numbers
  chunks[key] = chunks[key] or { first = {}, result = {} }
  return chunks[key]
end

local function track(buffer, offset, pinfo, tree)
  local kind = buffer(offset + 2, 1):uint() % TAGGED
  local from, to = tostring(pinfo.src) .. ":" .. pinfo.src_port, tostring(pinfo.dst) .. ":" .. pinfo.dst_port
  local now = { frame = pinfo.number, time = pinfo.rel_ts }
  if kind == CONTRIBUTION then
    local chunk = chunk_of(buffer, offset, to)
    local first = chunk.first[from]
    if not pinfo.visited then
      if first then sent_again[pinfo.number .. " " .. offset] = first.frame end
      chunk.first[from] = first or now
      chunk.last = now
    end
    local before = sent_again[pinfo.number .. " " .. offset]
    if before then
      tree:add(f.first_in, before):set_generated()
      tree:add_proto_expert_info(e.again)
    end
    local result = chunk.result[from] or chunk.result.all
    if result then tree:add(f.result_in, result.frame):set_generated() end
  elseif kind == RESULT then
    local chunk = chunk_of(buffer, offset, from)
    local group = tonumber(tostring(pinfo.dst):match("^(%d+)%.")) or 0
    local host = group >= 224 and group < 240 and "all" or to
    if not pinfo.visited then chunk.result[host] = chunk.result[host] or now end
    local contribution = chunk.first[host] or (host == "all" and chunk.last)
    if contribution then
      tree:add(f.contribution_in, contribution.frame):set_generated()
      local seconds = now.time - contribution.time
      tree:add(f.sum_time, NSTime.new(math.floor(seconds), math.floor((seconds % 1) * 1e9 + 0.5))):set_generated()
    end
  end
end

local function add_lanes(buffer, offset, count, tree)
  local captured = math.min(4 * count, captured_bytes(buffer, offset))
  if captured <= 0 then return end
  local lanes = tree:add(f.lanes, buffer(offset, captured)):set_text("Lanes (" .. count .. ")")
  if not passing.prefs.lanes then return end
  for i = 0, math.floor(captured / 4) - 1 do
    local at = buffer(offset + 4 * i, 4)
    lanes:add(f.lane, at):set_text(string.format("[%d]: %d", i, at:int()))
  end
end

-- Adds the packet at `offset`; returns its length, and its summary.
local function dissect_one(buffer, offset, pinfo, root)
  local wrong = problem(buffer, offset)
  local available = captured_bytes(buffer, offset)
  local function field(tree, one, at, length)
    return at + length <= available and tree:add(one, buffer(offset + at, length)) or nil
  end
  local length, count, is_cut = sent_bytes(buffer, offset), 0, available < HEADER_BYTES
  if not wrong and not is_cut then
    count = lanes_carried(buffer, offset)
    length = HEADER_BYTES + 4 * count + tag_bytes(buffer, offset)
  end
  local tree = root:add(passing, buffer(offset, math.min(length, available)))
  field(tree, f.magic, 0, 1)
  field(tree, f.protocol, 1, 1)
  field(tree, f.type, 2, 1)
  field(tree, f.tagged, 2, 1)
  local flags = field(tree, f.flags, 3, 1)
  if flags then
    field(flags, f.nan, 3, 1)
    field(flags, f.pos_inf, 3, 1)
    field(flags, f.neg_inf, 3, 1)
    field(flags, f.bare, 3, 1)
    field(flags, f.no_result, 3, 1)
  end
  field(tree, f.job, 4, 2)
  field(tree, f.epoch, 6, 2)
  local worker = field(tree, f.worker, 8, 2)
  if worker and buffer(offset + 8, 2):uint() == EVERY_WORKER then worker:append_text(" (every worker)") end
  field(tree, f.slot, 10, 2)
  field(tree, f.sequence, 12, 4)
  field(tree, f.version, 16, 1)
  field(tree, f.lane_format, 17, 1)
  field(tree, f.element_count, 18, 2)
  if wrong then
    tree:add(f.malformed, wrong):set_generated()
    tree:add_proto_expert_info(e.malformed, "Malformed: " .. wrong)
    return length, "malformed: " .. wrong
  end
  if is_cut then return length, "its header wasn't captured whole" end
  add_lanes(buffer, offset + HEADER_BYTES, count, tree)
  local after = HEADER_BYTES + 4 * count
  if length > after and length <= available then tree:add(f.tag, buffer(offset + after, TAG_BYTES)) end

  local kind, number = buffer(offset + 2, 1):uint() % TAGGED, buffer(offset + 8, 2):uint()
  local allowed = kind == CONTRIBUTION and number < WORKERS_MAX or kind ~= CONTRIBUTION and number == EVERY_WORKER
  if not allowed then worker:add_proto_expert_info(e.worker) end
  track(buffer, offset, pinfo, tree)
  local who = kind == CONTRIBUTION and " of worker " .. number or ""
  local summary = string.format("%s%s, job %d.%d, slot %d.%d, sequence %d", TYPES[kind], who,
    buffer(offset + 4, 2):uint(), buffer(offset + 6, 2):uint(), buffer(offset + 10, 2):uint(),
    buffer(offset + 16, 1):uint(), buffer(offset + 12, 4):uint())
  tree:append_text(", " .. summary)
  return length, summary
end

function passing.dissector(buffer, pinfo, root)
  pinfo.cols.protocol = "PASSING"
  local offset, packets, first = 0, 0, nil
  repeat
    local length, summary = dissect_one(buffer, offset, pinfo, root)
    offset, packets, first = offset + length, packets + 1, first or summary
  until offset >= buffer:captured_len()
  pinfo.cols.info = first .. (packets > 1 and " (first of " .. packets .. " packets)" or "")
  return buffer:captured_len()
end

passing:register_heuristic("udp", function(buffer, pinfo, root)
  if buffer:captured_len() < HEADER_BYTES or problem(buffer, 0) then return false end
  passing.dissector(buffer, pinfo, root)
  return true
end)
DissectorTable.get("udp.port"):add("7170,7171", passing)
