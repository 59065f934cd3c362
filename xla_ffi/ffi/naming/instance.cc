#include "ffi/naming/instance.h"

#include <algorithm>
#include <map>

#include "ffi/naming/hash.h"

namespace passing {
namespace {

// Everything about a sum that its hosts must agree on.
uint64_t HashOf(const SumSpec& spec) {
  Hash hash;
  hash.Add(spec.identity);
  hash.Add(static_cast<uint64_t>(spec.dtype));
  hash.Add(static_cast<uint64_t>(spec.op));
  hash.Add(static_cast<uint64_t>(spec.wire_dtype));
  hash.Add(spec.member_count);
  hash.Add(spec.leaf_elements.size());
  for (const uint64_t count : spec.leaf_elements) hash.Add(count);
  hash.Add(spec.devices);
  return hash.value();
}

}  // namespace

// The live instances of one executable, of which there may be more until it is complete.
class OpenExecutable {
 public:
  explicit OpenExecutable(ModuleId id) : id_(std::move(id)) {}

  static std::shared_ptr<OpenExecutable> Add(Instance* instance);
  static std::vector<ModuleId> EndCompilation(const std::vector<ModuleId>& modules);
  static void SetFingerprint(const ModuleId& module, std::string_view fingerprint);
  void Remove(Instance* instance);

  // Completes the list of instances, and numbers look-alikes. Null if there is no sum among them.
  std::shared_ptr<Executable> CompletedExecutable();

 private:
  // The instances of all open executables change together with their list.
  struct Registry {
    std::mutex mutex;
    std::map<ModuleId, std::shared_ptr<OpenExecutable>> open;  // may get more instances
    // Compiled, and to get a fingerprint before they are executed. They live as long as their instances.
    std::map<ModuleId, std::weak_ptr<OpenExecutable>> unmarked;
  };
  static Registry& registry() {
    static auto& registry = *new Registry();  // instances may outlive static destruction
    return registry;
  }

  // These need the registry's lock, as do all members.
  //
  // No longer open, if it is still the one in the registry.
  void Close();
  // The instances of each look-alikes' hash, in the order in which they are numbered.
  std::map<uint64_t, std::vector<Instance*>> ByHash() const;
  // Look-alikes that other hosts take part in; empty if there are none, or a fingerprint says all about their order.
  std::vector<Instance*> Ambiguous() const;
  void Complete();

  const ModuleId id_;
  std::vector<Instance*> instances_;  // in the order of instantiation; empty once complete
  std::string fingerprint_;
  std::shared_ptr<Executable> executable_;  // once complete
};

std::shared_ptr<OpenExecutable> OpenExecutable::Add(Instance* instance) {
  std::lock_guard lock(registry().mutex);
  const ModuleId id{instance->spec().program, instance->spec().ordinal};
  auto& open = registry().open[id];
  if (!open) open = std::make_shared<OpenExecutable>(id);
  open->instances_.push_back(instance);
  return open;
}

void OpenExecutable::Remove(Instance* instance) {
  std::lock_guard lock(registry().mutex);
  if (executable_) return;
  std::erase(instances_, instance);
  if (instances_.empty()) Close();
}

void OpenExecutable::Close() {
  const auto it = registry().open.find(id_);
  if (it != registry().open.end() && it->second.get() == this) registry().open.erase(it);
}

std::vector<ModuleId> OpenExecutable::EndCompilation(const std::vector<ModuleId>& modules) {
  std::vector<ModuleId> ambiguous;
  std::lock_guard lock(registry().mutex);
  std::erase_if(registry().unmarked, [](const auto& entry) { return entry.second.expired(); });
  std::erase_if(registry().open, [&](const auto& entry) {
    const auto& [id, open] = entry;
    if (std::find(modules.begin(), modules.end(), id) == modules.end()) return false;
    if (!open->Ambiguous().empty()) {
      registry().unmarked[id] = open;
      ambiguous.push_back(id);
    }
    return true;
  });
  return ambiguous;
}

void OpenExecutable::SetFingerprint(const ModuleId& module, std::string_view fingerprint) {
  std::lock_guard lock(registry().mutex);
  const auto it = registry().unmarked.find(module);
  if (it == registry().unmarked.end()) return;
  const std::shared_ptr<OpenExecutable> found = it->second.lock();
  registry().unmarked.erase(it);
  if (found && !found->executable_) found->fingerprint_ = fingerprint;
}

std::map<uint64_t, std::vector<Instance*>> OpenExecutable::ByHash() const {
  std::map<uint64_t, std::vector<Instance*>> by_hash;
  for (Instance* instance : instances_) {
    if (!instance->spec().is_visit()) by_hash[instance->hash_].push_back(instance);
  }
  for (auto& [hash, alike] : by_hash) {
    std::stable_sort(alike.begin(), alike.end(),
                     [](const Instance* a, const Instance* b) { return a->spec().site < b->spec().site; });
  }
  return by_hash;
}

std::vector<Instance*> OpenExecutable::Ambiguous() const {
  if (!fingerprint_.empty()) return {};
  for (const auto& [hash, alike] : ByHash()) {
    if (alike.size() > 1 && alike.front()->spec().world_size != 1) return alike;
  }
  return {};
}

void OpenExecutable::Complete() {
  executable_ = std::make_shared<Executable>();
  ProgramInfo& program = executable_->program;
  program.name = id_.first;
  const Instance* conditional = nullptr;
  for (const Instance* instance : instances_) {
    const SumSpec& spec = instance->spec();
    executable_->visits |= spec.is_visit();
    if (spec.is_visit()) continue;
    executable_->platform = instance->platform_;
    if (spec.conditional && spec.world_size != 1) conditional = instance;
    program.devices = spec.devices;
    executable_->sums.push_back(instance->spec_);
  }
  program.fingerprint = fingerprint_;
  Hash hash;
  hash.Add(program.name);
  hash.Add(program.fingerprint);
  hash.Add(executable_->visits);
  // In the order of the hashes, which is the same on all hosts: that of the sites, or of their instances, may not be.
  for (const auto& [sum, alike] : ByHash()) {
    for (size_t nth = 0; nth < alike.size(); ++nth) alike[nth]->nth_ = nth;
    program.identities.insert(program.identities.end(), alike.size(), alike.front()->spec().identity);
    hash.Add(sum);
    hash.Add(alike.size());
  }
  std::sort(program.identities.begin(), program.identities.end());
  executable_->hash = hash.value();
  if (conditional != nullptr && !executable_->visits) {
    executable_->refused = Failure{
        "ProgramMismatchError",
        conditional->spec().site_name +
            ": nothing in the compiled program counts its executions, so a host that skips the sum in one of them "
            "would meet what the others skip in another one. Put the loop or branch inside of jax.shard_map, or let "
            "the loop carry a scalar integer that its condition needs; compile it while the session is open"};
  }
  if (const auto alike = Ambiguous(); !alike.empty()) {
    executable_->refused = Failure{
        "ProgramMismatchError",
        std::to_string(alike.size()) + " sums (" + alike.front()->spec().site_name + ") of program " + program.name +
            " come from equal calls: in a loop that is differentiated, under jax.checkpoint, or in a jitted function "
            "with shardings of its own. Only XLA's order tells them apart, and the compiled module can't be compared "
            "with the other hosts'. Put each call on a line, or in a jax.named_scope, of its own"};
  }
  instances_.clear();
  Close();  // what is instantiated from now on belongs to another executable
}

std::shared_ptr<Executable> OpenExecutable::CompletedExecutable() {
  std::lock_guard lock(registry().mutex);
  if (!executable_) Complete();
  return executable_->program.identities.empty() ? nullptr : executable_;
}

Instance::Instance(std::shared_ptr<const SumSpec> spec, std::string platform)
    : spec_(std::move(spec)),
      platform_(std::move(platform)),
      hash_(HashOf(*spec_)),
      open_executable_(OpenExecutable::Add(this)) {}

Instance::~Instance() { open_executable_->Remove(this); }

std::shared_ptr<const SumSite> Instance::SiteOf(int64_t group) {
  std::lock_guard lock(mutex_);
  auto& site = sites_[group];
  if (!site) {
    const auto executable = this->executable();
    Hash hash;
    hash.Add(executable->hash);
    hash.Add(hash_);
    hash.Add(nth_);
    hash.Add(static_cast<uint64_t>(group));
    site = std::make_shared<const SumSite>(SumSite{hash.value(), spec_, executable});
  }
  return site;
}

std::shared_ptr<const Executable> Instance::executable() { return open_executable_->CompletedExecutable(); }

std::vector<ModuleId> EndCompilation(const std::vector<ModuleId>& modules) {
  return OpenExecutable::EndCompilation(modules);
}

void SetFingerprint(const ModuleId& module, std::string_view fingerprint) {
  OpenExecutable::SetFingerprint(module, fingerprint);
}

}  // namespace passing
