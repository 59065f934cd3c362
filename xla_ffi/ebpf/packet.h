// The layout of a packet for the eBPF program: our header as in wire/header.h, and the headers around it.
#ifndef XLA_FFI_EBPF_PACKET_H_
#define XLA_FFI_EBPF_PACKET_H_

// libbpf's headers need the kernel's before them.
// clang-format off
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
// clang-format on

#define MAGIC 0x9A
#define PROTOCOL_VERSION 1
#define MAX_LANES 360
#define ALL_FLAGS 7
#define EVERY_WORKER 0xFFFF
#define MAX_WORKERS 64

enum packet_type { CONTRIBUTION = 1, RESULT = 2, PROBE = 3 };
enum lane_format { SUM_INT32 = 1, MAX_INT32 = 2 };

// In network order.
struct header {
  __u8 magic;
  __u8 protocol;
  __u8 type;
  __u8 flags;
  __be16 job;
  __be16 epoch;
  __be16 worker;
  __be16 slot;
  __be32 sequence;
  __u8 version;
  __u8 lane_format;
  __be16 element_count;
};

#define HEADER_BYTES sizeof(struct header)
#define MAX_PACKET_BYTES (HEADER_BYTES + 4 * MAX_LANES)

struct packet {
  struct header header;
  __be32 lanes[MAX_LANES];
};

// Ethernet, IPv4 without options, and UDP. The padding aligns IPv4 to four bytes, the whole to eight.
struct frame {
  __u16 padding;
  struct ethhdr ethernet;
  struct iphdr ip;
  struct udphdr udp;
};

#define FRAME_PADDING 2
#define FRAME_BYTES (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))
#define FRAME_CHECK_AT (ETH_HLEN + sizeof(struct iphdr) + offsetof(struct udphdr, check))
#define IP_PROTOCOL_UDP 17
#define IP_DONT_FRAGMENT 0x4000

#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

// As one test, which the compiler would make of the two, the verifier doesn't see through it.
#define WITHIN(number, lowest, highest) \
  ((number) <= (highest) && ({          \
     asm volatile("" : "+r"(number));   \
     (number) >= (lowest);              \
   }))

static __always_inline __u16 folded(__u64 sum) {
  sum = (sum & 0xFFFF) + (sum >> 16 & 0xFFFF) + (sum >> 32);
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  return sum;
}

// The part of a UDP checksum that a network card or the receiver starts from.
static __always_inline __u16 pseudo_header_sum(const struct frame* frame) {
  return folded((__u64)frame->ip.saddr + frame->ip.daddr + bpf_htons(IP_PROTOCOL_UDP) + frame->udp.len);
}

// Lengths and checksums for `bytes` of UDP payload. If the kernel has yet to write the UDP checksum (`partial`), the
// field holds the sum of the pseudo header; else there is none, as UDP over IPv4 allows: the lanes are too many to add.
static __always_inline void set_length(struct frame* frame, __u32 bytes, int partial) {
  const __u16* words = (const __u16*)&frame->ip;
  __u64 sum = 0;
  frame->ip.tot_len = bpf_htons(sizeof(struct iphdr) + sizeof(struct udphdr) + bytes);
  frame->udp.len = bpf_htons(sizeof(struct udphdr) + bytes);
  frame->ip.check = 0;
#pragma unroll
  for (__u32 i = 0; i < sizeof(struct iphdr) / 2; ++i) sum += words[i];
  frame->ip.check = ~folded(sum);
  frame->udp.check = partial ? pseudo_header_sum(frame) : 0;
}

// To an IPv4 multicast group. Routers pass nothing on, as for what our software switch sends to a group.
static __always_inline void set_group(struct frame* frame, __be32 group, __be16 port) {
  const __u32 address = bpf_ntohl(group);
  const __u8 mac[ETH_ALEN] = {0x01, 0x00, 0x5E, address >> 16 & 0x7F, address >> 8 & 0xFF, address & 0xFF};
  __builtin_memcpy(frame->ethernet.h_dest, mac, ETH_ALEN);
  frame->ip.daddr = group;
  frame->ip.ttl = 1;
  frame->udp.dest = port;
}

#endif  // XLA_FFI_EBPF_PACKET_H_
