// One rank on one GPU: tensor maps, launches, and what the kernel left behind as sentences.
#include "backends/sm90/rank.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <vector>

#include "backends/error_text.h"
#include "backends/sm90/driver.h"
#include "backends/sm90/scale_conversion.h"
#include "backends/sm90/tensor_maps.h"
#include "backends/stream_owners.h"

namespace megamoe::sm90 {
namespace {

/// Calls of at most so many tokens gather rows where that can be done. Measured on an H200, flash slice: 5% faster at 1
/// token, 2% at 32 and 64, 1% at 128, 2% slower at 256: each row is gathered once a column tile.
constexpr uint32_t kMaxGatheredTokens = 128;

/// The kernel reads and writes rows 16 bytes at a time; a row elsewhere would end every later call of the process.
Status check_alignment(const char* what, const TensorView& view) {
  constexpr int64_t kBytes = 16;
  const int64_t num_rows = view.shape[0], row_bytes = view.strides[0] * element_bytes(view.dtype);
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  if (num_rows == 0 || (address % kBytes == 0 && (num_rows == 1 || row_bytes % kBytes == 0))) return {};
  return {Code::kInvalidArgument,
          fmt::format("moe_layer.forward: each row of {} must begin at a multiple of {} bytes for backend cuda, got "
                      "address {:#x} and {} bytes from row to row; align it",
                      what, kBytes, address, row_bytes)};
}

uint64_t steady_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

}  // namespace

Result<std::unique_ptr<Sm90Rank>> Sm90Rank::create(const LayerConfig& config, const backends::BackendPlan& plan,
                                                   const KernelInstance& instance,
                                                   std::shared_ptr<SymmetricMemory> group) {
  std::unique_ptr<Sm90Rank> rank(new Sm90Rank(config, plan, instance, std::move(group)));
  const Status status = rank->open();
  if (!status.ok()) return status;
  return rank;
}

Sm90Rank::Sm90Rank(const LayerConfig& config, const backends::BackendPlan& plan, const KernelInstance& instance,
                   std::shared_ptr<SymmetricMemory> group)
    : instance_(instance),
      config_(config),
      group_(std::move(group)),
      timeout_ns_(config.timeout_ns),
      device_(group_->device_index()) {
  args_.view = backends::make_view(plan, *group_);
  args_.clamp = config.swiglu_clamp.value_or(std::numeric_limits<float>::infinity());
}

Sm90Rank::~Sm90Rank() {
  const CurrentDevice current(device_);
  backends::StreamOwners::instance().forget(args_.view.flat_base, args_.view.rank);
  if (last_call_ != nullptr) cudaEventSynchronize(last_call_);
  if (last_call_ != nullptr) cudaEventDestroy(last_call_);
  // Back to the stream's pool: cudaFree would wait for kernels of other ranks on this GPU, which may wait for this
  // rank.
  if (args_.grid_state != nullptr) cudaFreeAsync(args_.grid_state, stream_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  if (side_stream_ != nullptr) cudaStreamDestroy(side_stream_);
  cudaFreeHost(args_.report);
}

Status Sm90Rank::open() {
  constexpr std::string_view kWhere = "moe_layer.create";
  const CurrentDevice current(device_);
  const Status shared = share_gpu();  // collective: before anything that can fail on one rank only
  MEGAMOE_RETURN_IF_ERROR(shared);
  cudaPointerAttributes attributes{};
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaPointerGetAttributes(&attributes, args_.view.own()), kWhere);
  if (attributes.type != cudaMemoryTypeDevice)
    return {Code::kInvalidArgument,
            fmt::format("moe_layer.create: the group's memory must be GPU memory for backend cuda, got memory of "
                        "transport \"{}\"; make the group with a CUDA transport",
                        group_->transport())};
  if (attributes.device != device_)
    return {Code::kInvalidArgument,
            fmt::format("moe_layer.create: this rank's memory must lie on the GPU that the group names, {}, got memory "
                        "on GPU {}; make the group with a CUDA transport",
                        device_, attributes.device)};
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), kWhere);
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking), kWhere);
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&last_call_, cudaEventDisableTiming), kWhere);
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaMallocAsync(reinterpret_cast<void**>(&args_.grid_state), sizeof(GridState), stream_),
                               kWhere);
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(args_.grid_state, 0, sizeof(GridState), stream_), kWhere);
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_), kWhere);
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaMallocHost(reinterpret_cast<void**>(&args_.report), sizeof(CallReport)), kWhere);
  *args_.report = {};
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(instance_.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    static_cast<int>(instance_.shared_bytes)),
                               kWhere);
  return make_workspace_maps(args_.view, instance_.spec, args_.maps);
}

Status Sm90Rank::share_gpu() {
  constexpr std::string_view kWhere = "moe_layer.create";
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, device_);
  const std::string uuid(properties.uuid.bytes, sizeof(properties.uuid.bytes));
  const Result<std::vector<std::string>> all = group_->all_gather(uuid, "exchange of GPU identities", timeout_ns_);
  MEGAMOE_RETURN_IF_ERROR(cuda_status(error, kWhere, "reading the GPU's properties"));
  if (!all.ok()) return all.status();
  uint32_t sharing = 0;
  for (const std::string& other : all.value()) sharing += other == uuid ? 1 : 0;
  const auto num_sms = static_cast<uint32_t>(properties.multiProcessorCount);
  // Also between processes: under an MPS server their kernels run side by side, without one they take turns.
  num_ctas_ = (num_sms - std::min(num_sms, config_.num_reserved_sms)) / sharing;
  if (num_ctas_ != 0) return {};
  return {
      Code::kNotSupported,
      fmt::format("moe_layer.create: every rank needs an SM of its GPU, got {} ranks on a GPU with {} SMs of which {} "
                  "are reserved; use fewer ranks a GPU, or reserve less",
                  sharing, num_sms, config_.num_reserved_sms)};
}

Status Sm90Rank::check_device(const char* where, std::initializer_list<const TensorView*> views) const {
  for (const TensorView* view : views)
    if (view->present() && view->device_index != device_)
      return {Code::kInvalidArgument,
              fmt::format("{}: tensors must lie on this rank's GPU {}, got device_index {}; copy them there, or set "
                          "their device_index",
                          where, device_, view->device_index)};
  return {};
}

Status Sm90Weights::read_scales(const TensorView& tensor, CUstream_st* stream, const float*& values) {
  values = static_cast<const float*>(tensor.data);
  if (!tensor.present() || tensor.dtype == DType::kFloat32) return {};
  constexpr std::string_view kWhere = "moe_layer.load_weights";
  const auto count = static_cast<uint64_t>(tensor.num_elements());
  float* copy = nullptr;
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaMallocAsync(reinterpret_cast<void**>(&copy), count * sizeof(float), stream), kWhere);
  converted.push_back(copy);
  MEGAMOE_RETURN_IF_CUDA_ERROR(decode_ue8m0(static_cast<const uint8_t*>(tensor.data), copy, count, stream), kWhere);
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream), kWhere);
  values = copy;
  return {};
}

Sm90Weights::~Sm90Weights() {
  // Not cudaFree, which would wait for kernels of other ranks on this GPU, which may wait for this rank.
  const CurrentDevice current(device);
  for (float* scales_copy : converted) cudaFreeAsync(scales_copy, cudaStreamPerThread);
}

Result<std::shared_ptr<const backends::WeightSet>> Sm90Rank::prepare_weights(const ExpertWeights& weights) {
  const CurrentDevice current(device_);
  MEGAMOE_RETURN_IF_ERROR(check_device(
      "moe_layer.load_weights", {&weights.w13, &weights.w13_scale, &weights.w2, &weights.w2_scale, &weights.shared_w13,
                                 &weights.shared_w13_scale, &weights.shared_w2, &weights.shared_w2_scale}));
  const protocol::WorkspaceSpec& spec = args_.view.spec;
  const W13Layout layout = weights.w13_layout;
  auto set = std::make_shared<Sm90Weights>();
  set->device = device_;
  set->scales.first_shared = spec.routed_local_experts();
  set->scales.up_is_first = layout == W13Layout::kUpGate;
  ExpertScales &routed = set->scales.routed, &shared = set->scales.shared;
  MEGAMOE_RETURN_IF_ERROR(set->read_scales(weights.w13_scale, stream_, routed.w13));
  MEGAMOE_RETURN_IF_ERROR(set->read_scales(weights.w2_scale, stream_, routed.w2));
  MEGAMOE_RETURN_IF_ERROR(set->read_scales(weights.shared_w13_scale, stream_, shared.w13));
  MEGAMOE_RETURN_IF_ERROR(set->read_scales(weights.shared_w2_scale, stream_, shared.w2));
  MEGAMOE_RETURN_IF_ERROR(make_weight_maps(args_.view, instance_.spec, spec.routed_local_experts(), weights.w13.data,
                                           weights.w2.data, layout, set->w13, set->w2));
  if (spec.shared_experts != 0)
    MEGAMOE_RETURN_IF_ERROR(make_weight_maps(args_.view, instance_.spec, spec.shared_experts, weights.shared_w13.data,
                                             weights.shared_w2.data, layout, set->shared_w13, set->shared_w2));
  return std::shared_ptr<const backends::WeightSet>(std::move(set));
}

void Sm90Rank::use_weights(std::shared_ptr<const backends::WeightSet> weights) {
  const auto& set = static_cast<const Sm90Weights&>(*weights);
  args_.weight_scales = set.scales;
  args_.maps.w13 = set.w13;
  args_.maps.w2 = set.w2;
  args_.maps.shared_w13 = set.shared_w13;
  args_.maps.shared_w2 = set.shared_w2;
  weights_ = std::move(weights);
}

CallTensors Sm90Rank::call_tensors(const ForwardArgs& args) const {
  const auto stride = [](const TensorView& view, uint32_t dim) { return static_cast<uint64_t>(view.strides[dim]); };
  CallTensors t;
  t.hidden = args.hidden_states.data;
  t.hidden_row_stride = stride(args.hidden_states, 0);
  t.num_tokens = static_cast<uint32_t>(args.hidden_states.shape[0]);
  if (args.hidden_states.dtype == DType::kFloat8E4M3) {
    t.scales = args.hidden_states_scale.data;
    t.scale_row_stride = stride(args.hidden_states_scale, 0);
    t.scale_group_stride = stride(args.hidden_states_scale, 1);
    t.scales_are_ue8m0 = args.hidden_states_scale.dtype == DType::kFloat8E8M0;
    const InputViews views = backends::input_views(args_.view, Device::kCuda);
    const bool in_views = t.hidden == views.codes.data && t.scales == views.scales.data;
    const bool copies_bulk = reinterpret_cast<uintptr_t>(t.hidden) % 16 == 0 && t.hidden_row_stride % 16 == 0;
    t.source = in_views || (args_.view.spec.num_ranks == 1 && copies_bulk) ? TokenSource::kReadInPlace
                                                                           : TokenSource::kCopyE4m3;
  }
  t.topk_ids = args.topk_ids.data;
  t.ids_are_64_bit = args.topk_ids.dtype == DType::kInt64;
  t.id_token_stride = stride(args.topk_ids, 0);
  t.id_slot_stride = stride(args.topk_ids, 1);
  t.topk_weights = static_cast<const float*>(args.topk_weights.data);
  t.weight_token_stride = stride(args.topk_weights, 0);
  t.weight_slot_stride = stride(args.topk_weights, 1);
  t.output = static_cast<uint16_t*>(args.output.data);
  t.output_row_stride = stride(args.output, 0);
  t.recv_counts = args.cumulative_recv_counts.present() ? args.cumulative_recv_counts.data : nullptr;
  t.recv_counts_are_64_bit = args.cumulative_recv_counts.dtype == DType::kInt64;
  return t;
}

Status Sm90Rank::enqueue(const ForwardArgs& args, const Status& refusal, cudaStream_t stream) {
  constexpr std::string_view kWhere = "moe_layer.forward";
  const CurrentDevice current(device_);
  KernelArgs call = args_;
  call.refusal = backends::make_refusal(refusal);
  if (refusal.ok()) call.tensors = call_tensors(args);
  call.rules = backends::slot_rules(config_, args_.view, args);
  call.tensors.is_plain = !call.rules.changes_ids() && call.rules.routed_scaling == 1.0f;
  call.tensors.num_ids = call.rules.num_ids;
  call.gathers_rows = instance_.spec.gathers_rows && args_.view.spec.num_ranks == 1 && !call.tensors.scales_are_ue8m0 &&
                      call.tensors.num_tokens <= kMaxGatheredTokens;
  call.timeout_ns = args.timeout_ns != 0 ? args.timeout_ns : timeout_ns_;
  call.clamp = args.swiglu_clamp.value_or(args_.clamp);
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = {num_ctas_, 1, 1};
  config.blockDim = {instance_.spec.plan.num_threads(), 1, 1};
  config.dynamicSmemBytes = instance_.shared_bytes;
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  void* parameters[] = {&call};
  // An event of outside a capture can be neither waited for nor replaced inside it: there the order is the caller's.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamIsCapturing(stream, &capture), kWhere);
  const bool is_captured = capture != cudaStreamCaptureStatusNone;
  if (!is_captured) MEGAMOE_RETURN_IF_ERROR(follow_last_call(stream));
  MEGAMOE_RETURN_IF_ERROR(
      cuda_status(cudaLaunchKernelExC(&config, instance_.function, parameters), kWhere, "launching the kernel"));
  if (!is_captured) MEGAMOE_RETURN_IF_CUDA_ERROR(cudaEventRecord(last_call_, stream), kWhere);
  return {};
}

Status Sm90Rank::follow_last_call(cudaStream_t stream) {
  constexpr std::string_view kWhere = "moe_layer.forward";
  unsigned long long id = 0;  // unlike the handle, never used again for another stream
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamGetId(stream, &id), kWhere);
  if (id == last_stream_id_) return {};
  last_stream_id_ = id;
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(stream, last_call_, 0), kWhere);
  return {};
}

Status Sm90Rank::check_cut_short() {
  // Acquire: pairs with report_call, which writes the record first.
  const uint64_t abort_word = std::atomic_ref(args_.report->abort_word).load(std::memory_order_acquire);
  cut_short_ = abort_word != 0;
  return cut_short_ ? backends::abort_status(args_.view, abort_word, args_.report->record) : Status{};
}

Status Sm90Rank::take_refusal(uint32_t current_epoch) {
  CallReport& report = *args_.report;
  // Acquire: pairs with report_refusal. Release: the GPU replaces the refusal only once it was read here.
  const uint32_t num_refused = std::atomic_ref(report.num_refused).load(std::memory_order_acquire);
  if (num_refused == report.num_told) return {};
  const Status status = backends::refusal_status(args_.view, report.refused_by, report.refusal);
  const uint32_t epoch = report.refused_epoch;
  std::atomic_ref(report.num_told).store(num_refused, std::memory_order_release);
  if (epoch == current_epoch) return status;
  return {status.code(), fmt::format("moe_layer.forward: an earlier call on a stream (number {} of this rank) failed, "
                                     "while this one takes place: {}",
                                     epoch, status.message())};
}

Status Sm90Rank::forward(const ForwardArgs& args, const Status& refusal) {
  const CurrentDevice current(device_);
  Status own = refusal;
  if (own.ok())
    own = check_device("moe_layer.forward",
                       {&args.hidden_states, &args.hidden_states_scale, &args.topk_ids, &args.topk_weights,
                        &args.output, &args.shared_weights, &args.expert_map, &args.cumulative_recv_counts});
  if (own.ok()) own = check_alignment("hidden_states", args.hidden_states);
  if (own.ok()) own = check_alignment("output", args.output);
  if (args.cuda_stream) {
    const auto stream = static_cast<cudaStream_t>(*args.cuda_stream);
    const Status free_stream = check_stream(stream);
    // A shared stream is held up by the others' calls, so a refusal could not tell them: it takes the rank's own one.
    return forward_on(args, own.ok() ? free_stream : own, free_stream.ok() ? stream : stream_);
  }
  const uint64_t start_ns = steady_ns();
  MEGAMOE_RETURN_IF_ERROR(enqueue(args, own, stream_));
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_), "moe_layer.forward");
  report_.total_ns = steady_ns() - start_ns;
  MEGAMOE_RETURN_IF_ERROR(check_cut_short());
  if (!own.ok()) return own;
  MEGAMOE_RETURN_IF_ERROR(take_refusal(args_.report->epoch));
  return read_rows_per_expert();
}

Status Sm90Rank::check_stream(cudaStream_t stream) {
  // A capture does not run, and its stream cannot be asked.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (args_.view.spec.num_ranks == 1 || cudaStreamIsCapturing(stream, &capture) != cudaSuccess ||
      capture != cudaStreamCaptureStatusNone)
    return {};
  unsigned long long id = 0;
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamGetId(stream, &id), "moe_layer.forward");
  const std::optional<uint32_t> other =
      backends::StreamOwners::instance().claim(args_.view.flat_base, id, args_.view.rank, ++num_stream_calls_);
  if (!other) return {};
  return {
      Code::kInvalidArgument,
      fmt::format("moe_layer.forward: ranks of one process must each call on a stream of their own, since a call on a "
                  "stream waits for the one before it and this one for all ranks, got the same stream at ranks {} "
                  "and {}; make a stream for each rank (torch: with torch.cuda.stream(torch.cuda.Stream()))",
                  std::min(*other, args_.view.rank), std::max(*other, args_.view.rank))};
}

Status Sm90Rank::forward_on(const ForwardArgs& args, const Status& own, cudaStream_t stream) {
  MEGAMOE_RETURN_IF_ERROR(check_cut_short());
  MEGAMOE_RETURN_IF_ERROR(enqueue(args, own, stream));
  if (!own.ok()) return own;
  return take_refusal(0);
}

Status Sm90Rank::finish() {
  const CurrentDevice current(device_);
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(last_call_), "moe_layer.finish");
  report_ = {};
  MEGAMOE_RETURN_IF_ERROR(check_cut_short());
  MEGAMOE_RETURN_IF_ERROR(take_refusal(args_.report->refused_epoch));
  return read_rows_per_expert();
}

Status Sm90Rank::read_rows_per_expert() {
  constexpr std::string_view kWhere = "moe_layer.forward";
  const auto& num_rows = args_.view.layout.expert_num_rows;
  report_.rows_per_expert.resize(args_.view.spec.routed_local_experts());
  MEGAMOE_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(report_.rows_per_expert.data(), num_rows.in(args_.view.own()),
                      report_.rows_per_expert.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost, stream_),
      kWhere);
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_), kWhere);
  return {};
}

void Sm90Rank::raise_abort(const protocol::ErrorRecord& record, const std::vector<uint32_t>& ranks) {
  const CurrentDevice current(device_);
  const uint64_t word = protocol::abort_value(0, args_.view.rank);
  cudaMemcpyAsync(args_.view.layout.error_record.in(args_.view.own()), &record, sizeof(record), cudaMemcpyHostToDevice,
                  side_stream_);
  for (const uint32_t rank : ranks)
    cudaMemcpyAsync(args_.view.layout.abort_word.in(args_.view.base(rank)), &word, sizeof(word), cudaMemcpyHostToDevice,
                    side_stream_);
  cudaStreamSynchronize(side_stream_);
}

void Sm90Rank::peer_died(uint32_t rank) {
  // What protocol::report_death leaves, written by the copy engine.
  protocol::ErrorRecord record;
  record.rank = static_cast<uint16_t>(args_.view.rank);
  record.signal = protocol::Signal::kAbort;
  record.missing.insert(rank);
  record.valid = protocol::kRecordGaveUp;
  raise_abort(record, {args_.view.rank});
}

void Sm90Rank::turn_away(const protocol::RankSet& late_ranks) {
  // What protocol::turn_away leaves.
  protocol::ErrorRecord record;
  record.rank = static_cast<uint16_t>(args_.view.rank);
  record.missing = late_ranks;
  record.valid = protocol::kRecordLeftOut;
  raise_abort(record, backends::members(late_ranks));
}

Status Sm90Rank::reset() {
  constexpr std::string_view kWhere = "moe_layer.reset";
  const CurrentDevice current(device_);
  void* own = args_.view.own();
  const auto zero = [&](const auto& region) { return cudaMemsetAsync(region.in(own), 0, region.bytes(), stream_); };
  const protocol::Workspace& w = args_.view.layout;
  for (const cudaError_t error :
       {zero(w.abort_word), zero(w.header), zero(w.slot_ranges), zero(w.refusal), zero(w.expert_done),
        zero(w.input_full), zero(w.epoch), zero(w.plan_ready), zero(w.bank_blocks), zero(w.tickets),
        zero(w.tokens_full), zero(w.acts_full), zero(w.acts_empty), zero(w.expert_blocks_done), zero(w.error_claim),
        zero(w.error_record), cudaMemsetAsync(args_.grid_state, 0, sizeof(GridState), stream_)})
    MEGAMOE_RETURN_IF_ERROR(cuda_status(error, kWhere, "zeroing the signals"));
  MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_), kWhere);
  *args_.report = {};
  cut_short_ = false;
  return {};
}

}  // namespace megamoe::sm90
