// MoeLayer: create -> validate -> agree -> allocate -> bind a backend; forward -> validate -> backend.
#include "megamoe/moe_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "api/log.h"
#include "api/options.h"
#include "api/registry.h"
#include "api/validate.h"
#include "backends/error_text.h"

namespace megamoe {
namespace {

constexpr std::string_view reach_text(protocol::Reach reach) {
  switch (reach) {
    case protocol::Reach::kPeersWrite:
      return "peers write";
    case protocol::Reach::kPeersRead:
      return "peers read";
    default:
      return "local";
  }
}

/// @param group  null: a plan only, which needs no GPU
Result<backends::BackendPlan> make_plan(const LayerConfig& config, uint32_t num_ranks, const SymmetricMemory* group,
                                        const backends::Backend*& backend) {
  MEGAMOE_RETURN_IF_ERROR(api::apply_environment());
  MEGAMOE_RETURN_IF_ERROR(api::validate_config(config, num_ranks));
  Result<const backends::Backend*> chosen =
      group != nullptr ? api::choose_backend(config.backend, *group) : api::find_backend(config.backend);
  if (!chosen.ok()) return chosen.status();
  backend = chosen.value();
  Result<backends::BackendPlan> plan = backend->plan(config, num_ranks);
  if (!plan.ok()) return plan;
  LayerPlan& report = plan->report;
  const protocol::Workspace layout = protocol::Workspace::plan(plan->workspace);
  protocol::Workspace::for_each_region(
      plan->workspace, [&](const char* region, auto member, uint64_t, uint64_t, protocol::Reach reach) {
        report.regions.push_back(
            {region, (layout.*member).offset, (layout.*member).bytes(), std::string(reach_text(reach))});
      });
  report.workspace_bytes = layout.bytes;
  return plan;
}

/// Everything that must be equal on all ranks, in words, so that a difference can be shown.
std::string agreement_text(const LayerConfig& c, const backends::BackendPlan& plan) {
  const protocol::WorkspaceSpec& w = plan.workspace;
  return fmt::format(
      "backend={} hidden={} intermediate={} num_experts={} top_k={} num_shared_experts={} routed_scaling={} "
      "num_logical_experts={} max_tokens_per_rank={} swiglu_clamp={} block_rows={} token_ring_blocks={} "
      "act_ring_blocks={} unit_blocks={} lag_units={}",
      plan.report.backend, c.shape.hidden, c.shape.intermediate, c.shape.num_experts, c.shape.top_k,
      c.num_shared_experts, c.routed_scaling, c.num_logical_experts, w.max_tokens,
      c.swiglu_clamp ? fmt::format("{}", *c.swiglu_clamp) : "none", w.block_m, w.token_ring_blocks, w.act_ring_blocks,
      plan.schedule.unit_blocks, plan.schedule.lag_units);
}

/// A backend's weights, and whose.
struct WeightsOfLayer final : PreparedWeights {
  WeightsOfLayer(uint64_t id, std::shared_ptr<const backends::WeightSet> ready) : layer_id(id), set(std::move(ready)) {}
  uint64_t layer_id;
  std::shared_ptr<const backends::WeightSet> set;
};

/// Never the same twice, unlike an address.
uint64_t next_layer_id() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

/// Collective: every rank tells whether it can go on; the first failure is everybody's.
/// @param mine  ok, or why this rank cannot go on
Status agree(SymmetricMemory& group, const Status& mine, const std::string& text, std::string_view what,
             uint64_t timeout_ns) {
  const std::string message = mine.ok() ? "+" + text : "-" + mine.message();
  const Result<std::vector<std::string>> all = group.all_gather(message, what, timeout_ns);
  if (!mine.ok()) return mine;
  if (!all.ok()) return all.status();
  for (uint32_t rank = 0; rank < group.num_ranks(); ++rank) {
    const std::string& theirs = all.value()[rank];
    if (!theirs.empty() && theirs[0] == '-')
      return {Code::kPeerFailed,
              fmt::format("{}: rank {} failed, so no rank goes on: {}", what, rank, theirs.substr(1))};
  }
  for (uint32_t rank = 1; rank < group.num_ranks(); ++rank) {
    if (all.value()[rank] != all.value()[0])
      return {Code::kInvalidArgument,
              fmt::format("{}: all ranks must be given the same configuration; rank 0 has \"{}\", rank {} has \"{}\"",
                          what, all.value()[0].substr(1), rank, all.value()[rank].substr(1))};
  }
  return {};
}

}  // namespace

class MoeLayer::Impl {
 public:
  Impl(LayerConfig config, std::shared_ptr<SymmetricMemory> group)
      : config_(std::move(config)), group_(std::move(group)) {}

  Status open() {
    Result<backends::BackendPlan> plan = make_plan(config_, group_->num_ranks(), group_.get(), backend_);
    const std::string text = plan.ok() ? agreement_text(config_, plan.value()) : "";
    const uint64_t timeout_ns = config_.timeout_ns != 0 ? config_.timeout_ns : kDefaultTimeoutNs;
    MEGAMOE_RETURN_IF_ERROR(agree(*group_, plan.ok() ? Status{} : plan.status(), text, "moe_layer.create", timeout_ns));
    plan_ = std::move(plan).value();
    MEGAMOE_RETURN_IF_ERROR(group_->allocate(plan_.report.workspace_bytes, timeout_ns));
    allocated_ = true;
    Result<std::unique_ptr<backends::BackendRank>> rank = backend_->create(config_, plan_, group_);
    const Status created = rank.ok() ? Status{} : rank.status();
    if (rank.ok()) rank_ = std::move(rank).value();
    if (rank_ != nullptr) group_->set_death_callback([this](uint32_t dead) { peer_died(dead); });
    MEGAMOE_RETURN_IF_ERROR(agree(*group_, created, "", "moe_layer.create", timeout_ns));
    api::log(api::LogLevel::kInfo,
             fmt::format("rank {} of {} ({}): backend {}, {} bytes of workspace", group_->rank(), group_->num_ranks(),
                         group_->transport(), plan_.report.backend, plan_.report.workspace_bytes));
    for (const std::string& warning : group_->warnings()) api::log(api::LogLevel::kWarning, warning);
    return {};
  }

  ~Impl() {
    group_->set_death_callback({});
    rank_.reset();
    if (!allocated_) return;
    // Nobody may unmap while a peer still runs; a peer that is gone for good is not waited for long.
    constexpr uint64_t kFarewellNs = 10'000'000'000;
    (void)group_->release(std::min(config_.timeout_ns, kFarewellNs));
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<std::shared_ptr<const PreparedWeights>> prepare_weights(const ExpertWeights& weights) {
    const uint32_t local = config_.shape.num_experts / group_->num_ranks();
    MEGAMOE_RETURN_IF_ERROR(api::validate_weights(weights, config_, local, *backend_));
    Result<std::shared_ptr<const backends::WeightSet>> set = rank_->prepare_weights(weights);
    if (!set.ok()) return set.status();
    return std::shared_ptr<const PreparedWeights>(std::make_shared<WeightsOfLayer>(id_, std::move(set).value()));
  }

  Status use_weights(const std::shared_ptr<const PreparedWeights>& weights) {
    const auto* given = dynamic_cast<const WeightsOfLayer*>(weights.get());
    if (given == nullptr || given->layer_id != id_)
      return {Code::kInvalidArgument,
              fmt::format("moe_layer.use_weights: the weights must have been prepared by this layer, got {}; call its "
                          "prepare_weights",
                          given == nullptr ? "none" : "another layer's")};
    rank_->use_weights(given->set);
    has_weights_ = true;
    return {};
  }

  Status forward(const ForwardArgs& args) {
    if (poisoned_)
      return {Code::kPoisoned,
              fmt::format("moe_layer.forward: an earlier call was cut short ({}); call reset() on every rank first",
                          poison_reason_)};
    MEGAMOE_RETURN_IF_ERROR(api::validate_active_ranks(args, group_->rank(), group_->num_ranks()));
    MEGAMOE_RETURN_IF_ERROR(leave_out(backends::absent_ranks(args, group_->num_ranks())));
    Status refusal = api::validate_forward(args, config_, group_->num_ranks(), *backend_);
    if (refusal.ok()) refusal = api::validate_input_views(args, input_views());
    if (refusal.ok() && !has_weights_)
      refusal = {Code::kInvalidArgument, "moe_layer.forward: load_weights must have succeeded before, and it has not"};
    watch_deaths();
    const Status status = rank_->forward(args, refusal);
    if (!args.cuda_stream) end_watch();
    return note(status);
  }

  Status finish() {
    const Status status = rank_->finish();
    end_watch();
    if (!poisoned_) return note(status);
    return {Code::kPoisoned,
            fmt::format("moe_layer.finish: an earlier call was cut short ({}); call reset() on every rank first",
                        poison_reason_)};
  }

  InputViews input_views() const {
    const backends::DeviceMemory* memory = backend_->device_memory();
    return backends::input_views(backends::make_view(plan_, *group_),
                                 memory == nullptr ? Device::kCpu : memory->device(), group_->device_index());
  }

  Status reset() {
    (void)rank_->finish();
    end_watch();
    MEGAMOE_RETURN_IF_ERROR(agree(*group_, {}, "", "moe_layer.reset", config_.timeout_ns));
    const Status mine = rank_->reset();
    MEGAMOE_RETURN_IF_ERROR(agree(*group_, mine, "", "moe_layer.reset", config_.timeout_ns));
    poisoned_ = false;
    poison_reason_.clear();
    keep_out({});
    return {};
  }

  const LayerPlan& plan() const { return plan_.report; }
  const ForwardReport& last_report() const { return rank_->last_report(); }

 private:
  /// Ranks leave for as long as it takes to reset(): the numbers of their calls are behind the others'. One that comes
  /// back all the same is told so, and the call happens nowhere; all ranks that stayed decide alike.
  Status leave_out(const protocol::RankSet& absent) {
    protocol::RankSet back;
    for (uint32_t rank = 0; rank < group_->num_ranks(); ++rank)
      if (left_out_.contains(rank) && !absent.contains(rank)) back.insert(rank);
    if (back.empty()) {
      keep_out(absent);
      return {};
    }
    rank_->turn_away(back);
    return {Code::kInvalidArgument, backends::left_out_text(backends::join_ranks(backends::members(back)))};
  }

  void keep_out(const protocol::RankSet& ranks) {
    const std::lock_guard lock(death_mutex_);
    left_out_ = ranks;
  }

  /// On a thread of the transport: a death ends the call that the dead rank takes part in, the current or the next one;
  /// calls from which it is left out go on.
  void peer_died(uint32_t dead) {
    const std::lock_guard lock(death_mutex_);
    dead_.insert(dead);
    if (is_calling_ && !left_out_.contains(dead)) rank_->peer_died(dead);
  }
  void watch_deaths() {
    const std::lock_guard lock(death_mutex_);
    is_calling_ = true;
    for (const uint32_t rank : backends::members(dead_))
      if (!left_out_.contains(rank)) rank_->peer_died(rank);
  }
  void end_watch() {
    const std::lock_guard lock(death_mutex_);
    is_calling_ = false;
  }

  /// A call that was cut short poisons the layer; a refused one does not.
  Status note(const Status& status) {
    if (status.ok() || !rank_->cut_short()) return status;
    poisoned_ = true;
    std::string dead;
    for (const uint32_t rank : group_->dead_ranks()) dead += fmt::format("; {} has died", group_->describe(rank));
    poison_reason_ = status.message() + dead;
    api::log(api::LogLevel::kWarning, poison_reason_);
    return {status.code(), poison_reason_};
  }

  const uint64_t id_ = next_layer_id();
  LayerConfig config_;
  std::shared_ptr<SymmetricMemory> group_;
  const backends::Backend* backend_ = nullptr;
  backends::BackendPlan plan_;
  std::unique_ptr<backends::BackendRank> rank_;
  bool allocated_ = false;
  bool has_weights_ = false;
  bool poisoned_ = false;
  std::string poison_reason_;
  std::mutex death_mutex_;
  protocol::RankSet left_out_;  ///< Of a call since the last reset. Written by the caller's thread alone.
  protocol::RankSet dead_;
  bool is_calling_ = false;  ///< From a call's start to its end, of a call on a stream to finish().
};

Result<LayerPlan> MoeLayer::plan(const LayerConfig& config, uint32_t num_ranks) {
  const backends::Backend* backend = nullptr;
  Result<backends::BackendPlan> plan = make_plan(config, num_ranks, nullptr, backend);
  if (!plan.ok()) return plan.status();
  return std::move(plan->report);
}

Result<MoeLayer> MoeLayer::create(const LayerConfig& config, std::shared_ptr<SymmetricMemory> group) {
  if (group == nullptr)
    return Status{Code::kInvalidArgument,
                  "moe_layer.create: group must be given, got a null pointer; see make_thread_group"};
  auto impl = std::make_unique<Impl>(config, std::move(group));
  MEGAMOE_RETURN_IF_ERROR(impl->open());
  return MoeLayer(std::move(impl));
}

MoeLayer::MoeLayer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MoeLayer::MoeLayer(MoeLayer&&) noexcept = default;
MoeLayer& MoeLayer::operator=(MoeLayer&&) noexcept = default;
MoeLayer::~MoeLayer() = default;

Status MoeLayer::load_weights(const ExpertWeights& weights) {
  Result<std::shared_ptr<const PreparedWeights>> prepared = impl_->prepare_weights(weights);
  if (!prepared.ok()) return prepared.status();
  return impl_->use_weights(prepared.value());
}
Result<std::shared_ptr<const PreparedWeights>> MoeLayer::prepare_weights(const ExpertWeights& weights) {
  return impl_->prepare_weights(weights);
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): callers hand it over
Status MoeLayer::use_weights(std::shared_ptr<const PreparedWeights> weights) { return impl_->use_weights(weights); }
Status MoeLayer::forward(const ForwardArgs& args) { return impl_->forward(args); }
Status MoeLayer::finish() { return impl_->finish(); }
InputViews MoeLayer::input_views() const { return impl_->input_views(); }
Status MoeLayer::reset() { return impl_->reset(); }
const LayerPlan& MoeLayer::plan() const { return impl_->plan(); }
const ForwardReport& MoeLayer::last_report() const { return impl_->last_report(); }

}  // namespace megamoe
