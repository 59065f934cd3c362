// A tree of switches, and the switch that each rank sends to.
#ifndef TESTS_XLA_FFI_HOST_SUPPORT_TREE_H_
#define TESTS_XLA_FFI_HOST_SUPPORT_TREE_H_

#include <cassert>
#include <cstdint>
#include <map>
#include <vector>

#include "wire/header.h"

namespace passing {

struct Tree {
  std::vector<uint32_t> parent_of{0};  // by switch; switch 0 is the root, every other one comes after its parent
  std::vector<uint32_t> switch_of;     // by rank

  uint32_t switch_count() const { return static_cast<uint32_t>(parent_of.size()); }

  static Tree OneSwitch(uint32_t world_size) { return {.switch_of = std::vector<uint32_t>(world_size)}; }

  // `level_sizes`: switches below each switch, level by level; ranks spread evenly over those of the lowest level.
  static Tree Levels(uint32_t world_size, std::vector<uint32_t> level_sizes) {
    Tree tree;
    uint32_t first = 0, end = 1;  // of the level above
    for (const uint32_t size : level_sizes) {
      for (uint32_t above = first; above < end; ++above) tree.parent_of.insert(tree.parent_of.end(), size, above);
      first = end;
      end = tree.switch_count();
    }
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      tree.switch_of.push_back(first + rank * (end - first) / world_size);
    }
    return tree;
  }
};

// A worker of a switch.
struct Member {
  bool is_switch = false;
  uint32_t index = 0;  // its rank, or the switch's number
};

// By switch. Workers stand in the order of the lowest rank among their own.
inline std::vector<std::vector<Member>> MembersOf(const Tree& tree) {
  std::vector<std::map<uint32_t, Member>> by_rank(tree.switch_count());
  for (uint32_t rank = 0; rank < tree.switch_of.size(); ++rank) by_rank[tree.switch_of[rank]][rank] = {false, rank};
  for (uint32_t one = tree.switch_count() - 1; one > 0; --one) {
    assert(tree.parent_of[one] < one && !by_rank[one].empty());
    by_rank[tree.parent_of[one]][by_rank[one].begin()->first] = {true, one};
  }
  std::vector<std::vector<Member>> members;
  for (const auto& ranks : by_rank) {
    assert(ranks.size() <= wire::kMaxWorkers);
    members.emplace_back();
    for (const auto& [rank, member] : ranks) members.back().push_back(member);
  }
  return members;
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_HOST_SUPPORT_TREE_H_
