// The maps of the eBPF program, which user space fills and reads, and what stands in them.
#ifndef XLA_FFI_EBPF_MAPS_H_
#define XLA_FFI_EBPF_MAPS_H_

#include "slots.h"

#define MAX_SEGMENTS 128  // UDP_MAX_SEGMENTS of the kernel

// The way to a worker, learned from its packets.
struct route {
  struct frame frame;  // all but lengths and checksums of a packet to it
  __u32 device;        // 0: nothing learned yet
};

struct worker {
  __be32 ip;
  __be16 udp_port;
  __u16 padding;
  struct route route;
};

struct job {
  __u32 epoch;
  __u32 slot_first;
  __u32 slot_count;
  __u32 reach;  // how far ahead of the furthest complete sequence a contribution may be
  __u32 worker_count;
  __be32 group;  // hears the results for all workers; 0: each is sent its own
  __be16 group_port;
  __u16 padding[3];
  struct worker workers[MAX_WORKERS];
};

struct counters {
  __u64 packets_received;
  __u64 bytes_received;
  __u64 packets_sent;
  __u64 bytes_sent;
  __u64 results_multicast;
  __u64 packets_unsent;     // no memory, or a port's queue was full
  __u64 results_handed_up;  // for user space to send: not all packets of a super-packet made results
  __u64 verdicts[VERDICTS];
};

// The results of a super-packet.
struct out {
  __u32 count;
  __u32 bytes_used;
  struct {
    __u16 bytes;
    __u16 job;
    __u16 to;  // a worker, or EVERY_WORKER
    __u16 padding;
  } results[MAX_SEGMENTS];
  __u8 bytes[65536 + sizeof(struct packet)];  // side by side
};

// One for each processor: a program runs to its end on the one where it began, with no other in between.
struct scratch {
  struct route source;  // of the packet at hand
  __u64 admitted;       // its last sender that was: job, epoch and worker, and a bit that says that there is one
  __u32 slot_first;     // of that job
  __u32 slot_count;
  __u32 reach;
  __u32 partial;  // its UDP checksum is for the kernel to write
  __u32 uniform;  // all results so far are one job's, for the same workers
  __u32 padding;
  struct packet packet;
  struct out out;
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);  // 2 * slot + version
  __type(value, struct slot_version);
  __uint(max_entries, 1);  // the loader knows
} slots SEC(".maps");

// The furthest sequence of each job to which all workers have contributed.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);  // the job's first slot
  __type(value, __u32);
  __uint(max_entries, 1);  // the loader knows
} completed SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, __u32);
  __type(value, struct job);
  __uint(max_entries, 65536);
} jobs SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);  // processor
  __type(value, struct scratch);
  __uint(max_entries, 1);  // the loader knows
} scratches SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __type(key, __u32);
  __type(value, struct counters);
  __uint(max_entries, 1);
} counters SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 1 << 22);
} handed_up SEC(".maps");

static __always_inline struct scratch* my_scratch(void) {
  const __u32 processor = bpf_get_smp_processor_id();
  return bpf_map_lookup_elem(&scratches, &processor);
}

static __always_inline struct counters* my_counters(void) {
  const __u32 zero = 0;
  return bpf_map_lookup_elem(&counters, &zero);
}

#endif  // XLA_FFI_EBPF_MAPS_H_
