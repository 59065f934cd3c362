// The slots of the switch in the kernel treat a contribution as switch/slot_pool.cc does.
#ifndef XLA_FFI_EBPF_SLOTS_H_
#define XLA_FFI_EBPF_SLOTS_H_

#include "packet.h"

// In the order of switch/slot_pool.h; jax_passing/switch/data_planes/ebpf.py reads the counters in it.
enum verdict {
  ADDED,
  COMPLETE,
  RESEND,
  DUPLICATE,
  STALE,
  MALFORMED,
  FOREIGN_JOB,
  FOREIGN_EPOCH,
  FOREIGN_WORKER,
  FOREIGN_SOURCE,
  FOREIGN_SLOT,
  NOT_CONTRIBUTION,
  MISMATCH,
  TOO_FAR,
  VERDICTS,
};

// Two processors may hold contributions to the same slot version at once, so everything in it is read and written under
// its lock, the copy of a result included. The job and epoch are those that own the slot: user space writes them under
// the lock too when it gives a slot away. So a packet that passed the checks just before can't change another's slot.
struct slot_version {
  struct bpf_spin_lock lock;
  __u16 job;
  __u16 epoch;
  __u64 everybody;  // bits of all workers
  __u64 bitmap;
  __u32 sequence;
  __u8 held;  // 0: empty
  __u8 complete;
  __u8 flags;
  __u8 lane_format;
  __u16 element_count;
  __u16 padding[3];
  __u32 lanes[MAX_LANES];  // host order
};

// Lanes are taken eight at a time: those beyond the last one are never sent.
#define LANES_AT_ONCE 8
#define FOR_LANES(i, count)                                                                                     \
  _Pragma("clang loop unroll(disable)") for (__u32 i##_first = 0; i##_first < MAX_LANES && i##_first < (count); \
                                             i##_first += LANES_AT_ONCE)                                        \
      _Pragma("unroll") for (__u32 i = i##_first; i < i##_first + LANES_AT_ONCE; ++i)

static __always_inline void write_lanes(const __be32* packet, __u32 count, __u32* lanes) {
  FOR_LANES(i, count) lanes[i] = bpf_ntohl(packet[i]);
}

static __always_inline void add_lanes(const __be32* packet, __u32 count, __u32* lanes) {
  FOR_LANES(i, count) lanes[i] += bpf_ntohl(packet[i]);
}

// Without branches, of which each would be a path for the verifier.
static __always_inline void max_lanes(const __be32* packet, __u32 count, __u32* lanes) {
  FOR_LANES(i, count) {
    const __s64 above = (__s64)(__s32)bpf_ntohl(packet[i]) - (__s32)lanes[i];
    lanes[i] += (__u32)(above & ~(above >> 63));
  }
}

static __always_inline void read_lanes(const __u32* lanes, __u32 count, __be32* packet) {
  FOR_LANES(i, count) packet[i] = bpf_htonl(lanes[i]);
}

// The furthest complete sequence of a job advances, never back, whichever processor comes first. A processor that is
// beaten to it four times leaves it at that: it is behind by some positions then, of which the reach has many to spare,
// and goes on with the next one that is complete.
static __always_inline void go_on_to(__u32 sequence, __u32* completed) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __u32 before = *(volatile __u32*)completed;
    if ((__s32)(sequence - before) <= 0 || __sync_val_compare_and_swap(completed, before, sequence) == before) return;
  }
}

// `packet` is a contribution that passed all checks but the slot's. Writes the result to `result` if the verdict is
// COMPLETE or RESEND. `completed` is the job's: it changes under the slot's lock, so never after another job owns the
// slot. If that job has fewer slots, a last packet in one of the others may still change its `completed`. Jobs begin at
// position 0, where a sequence from before is behind it or puts it ahead, which lets more packets in, not fewer.
static __always_inline enum verdict contribute(struct slot_version* slot, const struct packet* packet, __u32 count,
                                               struct packet* result, __u32* completed) {
  const struct header* header = &packet->header;
  const __u32 sequence = bpf_ntohl(header->sequence);
  const __u64 bit = 1ull << (bpf_ntohs(header->worker) & (MAX_WORKERS - 1));
  enum verdict verdict = ADDED;

  bpf_spin_lock(&slot->lock);
  if (slot->job != bpf_ntohs(header->job) || slot->epoch != bpf_ntohs(header->epoch)) {
    verdict = FOREIGN_EPOCH;
  } else if (!slot->held || (__s32)(slot->sequence - sequence) < 0) {
    slot->held = 1;
    slot->complete = 0;
    slot->sequence = sequence;
    slot->element_count = count;
    slot->lane_format = header->lane_format;
    slot->flags = header->flags;
    slot->bitmap = bit;
    write_lanes(packet->lanes, count, slot->lanes);
  } else if (sequence != slot->sequence) {
    verdict = STALE;
  } else if (count != slot->element_count || header->lane_format != slot->lane_format) {
    verdict = MISMATCH;
  } else if (slot->bitmap & bit) {
    verdict = slot->complete ? RESEND : DUPLICATE;
  } else {
    slot->bitmap |= bit;
    slot->flags |= header->flags;
    if (header->lane_format == SUM_INT32) {
      add_lanes(packet->lanes, count, slot->lanes);
    } else {
      max_lanes(packet->lanes, count, slot->lanes);
    }
  }
  if (verdict == ADDED && slot->bitmap == slot->everybody) {
    slot->complete = 1;
    verdict = COMPLETE;
    go_on_to(sequence, completed);
  }
  if (verdict == COMPLETE || verdict == RESEND) {
    result->header = *header;
    result->header.type = RESULT;
    result->header.worker = EVERY_WORKER;
    result->header.flags = slot->flags;
    read_lanes(slot->lanes, count, result->lanes);
  }
  bpf_spin_unlock(&slot->lock);
  return verdict;
}

#endif  // XLA_FFI_EBPF_SLOTS_H_
