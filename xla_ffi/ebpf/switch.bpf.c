// A switch in the kernel: a tc program at the ingress of network devices. It takes the packets that are addressed to
// the switch, super-packets (GSO) whole, adds their lanes to the slots, and sends results out of the devices from which
// the workers' packets came. All else passes as if the program weren't there.
#include "maps.h"

#define MAX_UDP_BYTES 65507
// The program's verdict on a packet, as in linux/bpf.h.
#define PASS -1  // on to the next program, and the network stack: TCX_NEXT
#define DROP 2
#define REDIRECT 7

// The address of the switch, set before the program is loaded.
const volatile struct {
  __be32 ip;
  __be16 port;
  __u16 padding;
} own;

static __always_inline void learn(struct worker* worker, const struct route* source) {
  const __u64* now = (const __u64*)source;
  __u64* held = (__u64*)&worker->route;
#pragma unroll
  for (__u32 i = 0; i < sizeof(struct route) / 8; ++i) {
    if (held[i] != now[i]) held[i] = now[i];
  }
}

// Does the job have this worker, and do its packets come from this source? ADDED means yes, and no verdict yet.
static __always_inline enum verdict admit(struct scratch* scratch, const struct header* header) {
  const __u32 number = bpf_ntohs(header->job);
  struct job* job = bpf_map_lookup_elem(&jobs, &number);
  if (job == NULL) return FOREIGN_JOB;
  if (bpf_ntohs(header->epoch) != job->epoch) return FOREIGN_EPOCH;
  const __u32 index = bpf_ntohs(header->worker);
  if (index >= job->worker_count || index >= MAX_WORKERS) return FOREIGN_WORKER;
  struct worker* worker = &job->workers[index];
  const struct frame* reply = &scratch->source.frame;
  if (worker->ip != reply->ip.daddr || worker->udp_port != reply->udp.dest) return FOREIGN_SOURCE;
  learn(worker, &scratch->source);
  scratch->slot_first = job->slot_first;
  scratch->slot_count = job->slot_count;
  scratch->reach = job->reach;
  return ADDED;
}

// The verdict on one packet: `bytes` of UDP payload from `offset` on.
static __always_inline enum verdict judge(struct __sk_buff* skb, struct scratch* scratch, __u32 offset, __u32 bytes) {
  struct header* header = &scratch->packet.header;
  if (!WITHIN(bytes, HEADER_BYTES, MAX_PACKET_BYTES)) return MALFORMED;
  if (bpf_skb_load_bytes(skb, offset, &scratch->packet, bytes) < 0) return MALFORMED;
  if (header->magic != MAGIC || header->protocol != PROTOCOL_VERSION) return MALFORMED;
  if (header->type < CONTRIBUTION || header->type > PROBE) return MALFORMED;
  if (header->flags & ~ALL_FLAGS || header->version > 1) return MALFORMED;
  if (header->lane_format != SUM_INT32 && header->lane_format != MAX_INT32) return MALFORMED;
  const __u32 count = bpf_ntohs(header->element_count);
  if (count == 0 || count > MAX_LANES || bytes != HEADER_BYTES + 4 * count) return MALFORMED;

  const __u32 number = bpf_ntohs(header->job), index = bpf_ntohs(header->worker);
  const __u64 sender = 1ull << 63 | (__u64)number << 32 | (__u32)header->epoch << 16 | index;
  if (scratch->admitted != sender) {
    const enum verdict refusal = admit(scratch, header);
    if (refusal != ADDED) return refusal;
    scratch->admitted = sender;
  }
  const __u32 slot = bpf_ntohs(header->slot);
  if (slot < scratch->slot_first || slot - scratch->slot_first >= scratch->slot_count) return FOREIGN_SLOT;
  if (header->type != CONTRIBUTION) return NOT_CONTRIBUTION;
  __u32* furthest = bpf_map_lookup_elem(&completed, &scratch->slot_first);
  if (furthest == NULL) return FOREIGN_SLOT;  // can't be
  if ((__s32)(bpf_ntohl(header->sequence) - *(volatile __u32*)furthest) > (__s32)scratch->reach) return TOO_FAR;

  const __u32 key = 2 * slot + header->version;
  struct slot_version* held = bpf_map_lookup_elem(&slots, &key);
  struct out* out = &scratch->out;
  const __u32 at = out->bytes_used, result = out->count;
  if (held == NULL || at > 65535 || result >= MAX_SEGMENTS) return FOREIGN_SLOT;  // can't be
  const enum verdict verdict = contribute(held, &scratch->packet, count, (struct packet*)&out->bytes[at], furthest);
  if (verdict != COMPLETE && verdict != RESEND) return verdict;

  const __u16 to = verdict == COMPLETE ? EVERY_WORKER : index;
  out->results[result].bytes = bytes;
  out->results[result].job = number;
  out->results[result].to = to;
  if (out->results[0].job != number || out->results[0].to != to) scratch->uniform = 0;
  out->count = result + 1;
  out->bytes_used = at + bytes;
  return verdict;
}

// A function of its own, which the verifier checks once and not for each segment.
__noinline int segment(struct __sk_buff* skb, __u32 offset, __u32 bytes) {
  struct scratch* scratch = my_scratch();
  struct counters* counts = my_counters();
  if (scratch == NULL || counts == NULL) return 0;
  const __u32 verdict = judge(skb, scratch, offset, bytes);
  if (verdict < VERDICTS) ++counts->verdicts[verdict];
  ++counts->packets_received;
  counts->bytes_received += bytes;
  return 0;
}

// Sends the payload of `bytes` that stands in the packet, to a worker or to the job's group. A packet that has arrived
// can leave once `itself`; before that, copies of it do. Returns the program's verdict on the packet itself.
__noinline int send(struct __sk_buff* skb, __u32 number, __u32 to, __u32 bytes, int itself) {
  struct scratch* scratch = my_scratch();
  struct job* job = bpf_map_lookup_elem(&jobs, &number);
  if (scratch == NULL || job == NULL) return DROP;
  // If there is a group, all workers are behind one device and know the switch by the same addresses.
  const struct route* route = &job->workers[to == EVERY_WORKER ? 0 : to & (MAX_WORKERS - 1)].route;
  struct frame frame = route->frame;
  const __u32 device = route->device;
  if (to == EVERY_WORKER) set_group(&frame, job->group, job->group_port);
  if (device == 0) return DROP;
  set_length(&frame, bytes, scratch->partial);
  if (bpf_skb_store_bytes(skb, 0, (char*)&frame + FRAME_PADDING, FRAME_BYTES, BPF_F_INVALIDATE_HASH) < 0) return DROP;
  if (itself) return bpf_redirect(device, 0);
  return bpf_clone_redirect(skb, device, 0) == 0 ? REDIRECT : DROP;
}

// Sends it, with its `packets` results of the job, to one worker or to all.
__noinline int deliver(struct __sk_buff* skb, __u32 number, __u32 to, __u32 bytes, __u32 packets) {
  struct scratch* scratch = my_scratch();
  struct counters* counts = my_counters();
  struct job* job = bpf_map_lookup_elem(&jobs, &number);
  if (scratch == NULL || counts == NULL || job == NULL) return DROP;
  __u32 first = to, end = to + 1;
  if (to == EVERY_WORKER && job->group == 0) {
    first = 0;
    end = job->worker_count;
  } else if (to == EVERY_WORKER) {
    counts->results_multicast += packets;
  }
  int verdict = DROP;
  for (__u32 i = 0; i < MAX_WORKERS; ++i) {
    const __u32 next = first + i;
    if (next >= end) break;
    verdict = send(skb, number, next, bytes, next + 1 == end);
    if (verdict == REDIRECT) {
      counts->packets_sent += packets;
      counts->bytes_sent += bytes;
    } else {
      counts->packets_unsent += packets;
    }
  }
  return verdict;
}

// Do `bytes` of UDP payload and the words already added to `sum` make 0xFFFF together with the packet's checksum?
__noinline int checksum_holds(struct __sk_buff* skb, __u64 sum, __u32 bytes) {
  struct scratch* scratch = my_scratch();
  if (scratch == NULL || bytes % 4 != 0) return 1;  // malformed anyway
  if (!WITHIN(bytes, HEADER_BYTES, MAX_PACKET_BYTES) ||
      bpf_skb_load_bytes(skb, FRAME_BYTES, &scratch->packet, bytes) < 0)
    return 1;
  const __u32* words = (const __u32*)&scratch->packet;
  for (__u32 i = 0; i < MAX_PACKET_BYTES / 4; ++i) {
    if (i >= bytes / 4) break;
    sum += words[i];
  }
  return folded(sum) == 0xFFFF;
}

// Where the network card vouches for nothing, the stack would check the sum: so do we.
static __always_inline int intact(struct __sk_buff* skb, const struct frame* frame, __u32 bytes) {
  const struct udphdr* udp = &frame->udp;
  const __u16 pseudo = pseudo_header_sum(frame);
  if (udp->check == 0 || udp->check == pseudo) return 1;  // none, or to be written yet
  if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0) return 1;
  return checksum_holds(skb, (__u64)pseudo + udp->source + udp->dest + udp->len + udp->check, bytes);
}

SEC("tc")
int passing_switch(struct __sk_buff* skb) {
  struct frame frame;
  if (skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present) return PASS;
  frame.padding = 0;
  if (bpf_skb_load_bytes(skb, 0, (char*)&frame + FRAME_PADDING, FRAME_BYTES) < 0) return PASS;
  if (frame.ip.daddr != own.ip || frame.udp.dest != own.port || frame.ip.protocol != IP_PROTOCOL_UDP) return PASS;
  // The stack puts fragments together and reads options; neither yields a contribution.
  if (*(__u8*)&frame.ip != 0x45 || frame.ip.frag_off & bpf_htons(0x3FFF)) return PASS;
  if (frame.ethernet.h_dest[0] & 1) return PASS;
  const __u32 ip_bytes = bpf_ntohs(frame.ip.tot_len), udp_bytes = bpf_ntohs(frame.udp.len);
  const __u32 segment_bytes = skb->gso_size;
  if (udp_bytes < sizeof(struct udphdr) || sizeof(struct iphdr) + udp_bytes > ip_bytes) return PASS;
  if (ETH_HLEN + ip_bytes > skb->len) return PASS;
  if (segment_bytes && (ETH_HLEN + ip_bytes != skb->len || sizeof(struct iphdr) + udp_bytes != ip_bytes)) return PASS;
  const __u32 bytes = udp_bytes - sizeof(struct udphdr);
  struct scratch* scratch = my_scratch();
  struct counters* counts = my_counters();
  if (scratch == NULL || counts == NULL) return PASS;
  if (segment_bytes == 0 && !intact(skb, &frame, bytes)) return PASS;

  const __u32 stride = segment_bytes ? segment_bytes : bytes;
  const __u32 segments = stride ? (bytes + stride - 1) / stride : 1;  // a packet may be empty
  if (segments > MAX_SEGMENTS) return PASS;

  struct frame* reply = &scratch->source.frame;
  __builtin_memset(reply, 0, sizeof *reply);
  __builtin_memcpy(reply->ethernet.h_dest, frame.ethernet.h_source, ETH_ALEN);
  __builtin_memcpy(reply->ethernet.h_source, frame.ethernet.h_dest, ETH_ALEN);
  reply->ethernet.h_proto = frame.ethernet.h_proto;
  *(__u8*)&reply->ip = 0x45;
  reply->ip.frag_off = bpf_htons(IP_DONT_FRAGMENT);
  reply->ip.ttl = 64;
  reply->ip.protocol = IP_PROTOCOL_UDP;
  reply->ip.saddr = frame.ip.daddr;
  reply->ip.daddr = frame.ip.saddr;
  reply->udp.source = frame.udp.dest;
  reply->udp.dest = frame.udp.source;
  scratch->source.device = skb->ifindex;
  scratch->admitted = 0;
  scratch->out.count = 0;
  scratch->out.bytes_used = 0;
  scratch->uniform = 1;
  for (__u32 i = 0; i < MAX_SEGMENTS; ++i) {
    if (i >= segments) break;
    const __u32 first = i * stride;
    const __u32 rest = bytes - first;
    segment(skb, FRAME_BYTES + first, rest < stride ? rest : stride);
  }
  const __u32 results = scratch->out.count;
  if (results == 0) return DROP;

  if (results == segments && scratch->uniform) {
    __u32 payload = scratch->out.bytes_used;
    // The second zeroes a checksum that was written, and leaves one alone that the kernel has yet to write.
    if (!WITHIN(payload, HEADER_BYTES, 65535) ||
        bpf_skb_store_bytes(skb, FRAME_BYTES, scratch->out.bytes, payload, 0) < 0 ||
        bpf_l4_csum_replace(skb, FRAME_CHECK_AT, 0, frame.udp.check, sizeof frame.udp.check) < 0 ||
        bpf_skb_load_bytes(skb, FRAME_CHECK_AT, &frame.udp.check, sizeof frame.udp.check) < 0) {
      counts->packets_unsent += results;
      return DROP;
    }
    scratch->partial = frame.udp.check != 0;
    return deliver(skb, scratch->out.results[0].job, scratch->out.results[0].to, payload, results);
  }
  // The kernel has no way to shorten a super-packet, other than to an ordinary packet in all of its memory.
  __u32 record = scratch->out.bytes_used;
  if (!WITHIN(record, HEADER_BYTES, 65535) ||
      bpf_ringbuf_output(&handed_up, &scratch->out, sizeof scratch->out - sizeof scratch->out.bytes + record, 0) < 0) {
    counts->packets_unsent += results;
  } else {
    counts->results_handed_up += results;
  }
  return DROP;
}

const char LICENSE[] SEC("license") = "Apache-2.0";
