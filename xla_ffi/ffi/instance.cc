#include "ffi/instance.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace passing {
namespace {

// 64 bits tell some thousand sites of a job apart: the odds that any two collide are below 1e-12.
class Hash {
 public:
  void Add(uint64_t value) {
    // The finaliser of SplitMix64 after each word, so that every bit of the state depends on every bit before.
    state_ = (state_ ^ value) + 0x9e3779b97f4a7c15;
    state_ = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9;
    state_ = (state_ ^ (state_ >> 27)) * 0x94d049bb133111eb;
    state_ ^= state_ >> 31;
  }
  void Add(std::string_view text) {
    Add(text.size());
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      for (size_t j = i; j < std::min(i + 8, text.size()); ++j) word = word << 8 | static_cast<uint8_t>(text[j]);
      Add(word);
    }
  }
  void Add(const SiteInfo& info) {
    Add(static_cast<uint64_t>(info.site));
    Add(info.site_name);
    Add(static_cast<uint64_t>(info.dtype));
    Add(info.member_count);
    Add(info.leaf_elements.size());
    for (const uint64_t count : info.leaf_elements) Add(count);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace

// The live instances of one executable.
class Program {
 public:
  static std::shared_ptr<Program> Join(Instance* instance);
  static void EndCompilation();
  void Leave(Instance* instance);

  struct Place {
    uint64_t manifest;
    uint64_t rank;
    std::shared_ptr<Executions> executions;
  };
  Place PlaceOf(Instance* instance);

 private:
  // The instances of all open programs change together with their list.
  struct Registry {
    std::mutex mutex;
    std::map<std::pair<std::string, int64_t>, std::shared_ptr<Program>> open;  // may get more instances
  };
  static Registry& registry() {
    static auto& registry = *new Registry();  // instances may outlive static destruction
    return registry;
  }

  // No longer open, if it is still the one in the registry.
  void Close(const SiteInfo& info);

  const std::thread::id thread_ = std::this_thread::get_id();  // that compiles it
  std::vector<Instance*> instances_;  // in the order of instantiation; those of a closed program may be gone
  std::unordered_map<const Instance*, uint64_t> ranks_;
  std::optional<uint64_t> manifest_;  // once closed
  const std::shared_ptr<Executions> executions_ = std::make_shared<Executions>();
};

std::shared_ptr<Program> Program::Join(Instance* instance) {
  std::lock_guard lock(registry().mutex);
  auto& program = registry().open[{instance->info().program, instance->info().ordinal}];
  if (!program) program = std::make_shared<Program>();
  program->instances_.push_back(instance);
  return program;
}

void Program::Leave(Instance* instance) {
  std::lock_guard lock(registry().mutex);
  if (manifest_) {
    ranks_.erase(instance);
    return;
  }
  std::erase(instances_, instance);
  if (instances_.empty()) Close(instance->info());
}

void Program::Close(const SiteInfo& info) {
  const auto it = registry().open.find({info.program, info.ordinal});
  if (it != registry().open.end() && it->second.get() == this) registry().open.erase(it);
}

void Program::EndCompilation() {
  std::lock_guard lock(registry().mutex);
  std::erase_if(registry().open, [](const auto& entry) { return entry.second->thread_ == std::this_thread::get_id(); });
}

Program::Place Program::PlaceOf(Instance* instance) {
  std::lock_guard lock(registry().mutex);
  if (!manifest_) {
    std::map<int64_t, uint64_t> counts;  // instances of each site, in the order of sites
    std::map<int64_t, const SiteInfo*> infos;
    for (Instance* each : instances_) {
      ranks_[each] = counts[each->info().site]++;
      infos[each->info().site] = &each->info();
    }
    Hash hash;
    for (const auto& [site, count] : counts) {
      hash.Add(*infos[site]);
      hash.Add(count);
    }
    manifest_ = hash.value();
    instances_.clear();
    Close(instance->info());  // what is instantiated from now on belongs to another executable
  }
  assert(ranks_.contains(instance));
  return {*manifest_, ranks_[instance], executions_};
}

Instance::Instance(SiteInfo info)
    : info_(std::move(info)),
      shape_(std::make_shared<SumShape>(
          SumShape{info_.site_name, info_.dtype, info_.leaf_elements, info_.local_member_count})),
      program_(Program::Join(this)) {}

void EndCompilation() { Program::EndCompilation(); }

Instance::~Instance() { program_->Leave(this); }

std::shared_ptr<const Site> Instance::SiteOf(int64_t group) {
  std::lock_guard lock(mutex_);
  auto& site = sites_[group];
  if (!site) {
    const Program::Place place = program_->PlaceOf(this);
    Hash hash;
    hash.Add(info_.program);
    hash.Add(place.manifest);
    hash.Add(info_);
    hash.Add(place.rank);
    hash.Add(static_cast<uint64_t>(group));
    site = std::make_shared<const Site>(
        Site{hash.value(), shape_, place.executions, info_.replica_count, info_.world_size, info_.local, info_.flat});
  }
  return site;
}

}  // namespace passing
