#include "python/stats.h"

namespace nb = nanobind;

namespace passing {

nb::dict StatsDict(const AllReduceStats& stats) {
  nb::dict dict;
  dict["sums_started"] = stats.sums_started;
  dict["sums_completed"] = stats.sums_completed;
  dict["tensor_bytes"] = stats.tensor_bytes;
  dict["packets_sent"] = stats.packets_sent;
  dict["bytes_sent"] = stats.bytes_sent;
  dict["packets_received"] = stats.packets_received;
  dict["bytes_received"] = stats.bytes_received;
  dict["packets_resent"] = stats.packets_resent;
  dict["packets_dropped"] = stats.packets_dropped;
  dict["packets_forged"] = stats.packets_forged;
  dict["sums_wrong"] = stats.sums_wrong;
  dict["order_messages"] = stats.order_messages;
  dict["order_rollbacks"] = stats.order_rollbacks;
  dict["flagged_chunks"] = stats.flagged_chunks;
  dict["guesses_right"] = stats.guesses_right;
  dict["guesses_wrong"] = stats.guesses_wrong;
  dict["round_trip_us"] = stats.round_trip_us;
  dict["rto_us"] = stats.rto_us;
  dict["busy_us"] = stats.busy_us;
  dict["window_chunks"] = stats.window_chunks;
  return dict;
}

void AddSocketStats(nb::dict& dict, const UdpSocketStats& stats) {
  dict["datagrams_unsent"] = stats.datagrams_unsent;
  dict["errors_reported"] = stats.errors_reported;
}

}  // namespace passing
