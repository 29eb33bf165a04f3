// The C interface: translates structs, keeps error texts, lets no exception out.
#include "megamoe/megamoe.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "api/log.h"
#include "capi/translate.h"
#include "megamoe/moe_layer.h"
#include "megamoe/process_group.h"

struct megamoe_group {
  std::shared_ptr<megamoe::SymmetricMemory> memory;
};

struct megamoe_layer {
  megamoe::MoeLayer layer;
  std::string error;
};

struct megamoe_weights {
  std::shared_ptr<const megamoe::PreparedWeights> prepared;
};

namespace megamoe::capi {
namespace {

static_assert(MEGAMOE_W13_INTERLEAVED_8 == static_cast<int>(W13Layout::kInterleaved8));
static_assert(MEGAMOE_SCALE_UE8M0 == static_cast<int>(ScaleFormat::kUe8m0));

/// The stream of a call, where it has one.
Status read_stream(const megamoe_forward_args& args, std::optional<void*>& stream) {
  if (args.is_asynchronous == 1) stream = args.cuda_stream;
  const char* wrong = nullptr;
  if (args.is_asynchronous > 1) wrong = "is_asynchronous must be 0 or 1";
  if (args.is_asynchronous == 0 && args.cuda_stream != nullptr)
    wrong = "cuda_stream must be null where is_asynchronous is 0";
  if (wrong == nullptr) return {};
  return {Code::kInvalidArgument, fmt::format("megamoe_layer_forward: {}; zero the struct before filling it", wrong)};
}

W13Layout w13_layout(megamoe_w13_layout layout) {
  const bool known = layout >= MEGAMOE_W13_GATE_UP && layout <= MEGAMOE_W13_INTERLEAVED_8;
  return known ? static_cast<W13Layout>(layout) : W13Layout::kUnspecified;
}

ScaleFormat scale_format(megamoe_scale_format format) {
  const bool known = format == MEGAMOE_SCALE_FLOAT32 || format == MEGAMOE_SCALE_UE8M0;
  return known ? static_cast<ScaleFormat>(format) : ScaleFormat::kUnspecified;
}

Status read_weights(const char* function, const megamoe_expert_weights* given, ExpertWeights& weights) {
  megamoe_expert_weights w = {};
  MEGAMOE_RETURN_IF_ERROR(read_struct(function, given, w));
  weights = {view(w.w13),
             view(w.w13_scale),
             view(w.w2),
             view(w.w2_scale),
             w13_layout(w.w13_layout),
             scale_format(w.scale_format),
             view(w.shared_w13),
             view(w.shared_w13_scale),
             view(w.shared_w2),
             view(w.shared_w2_scale)};
  return {};
}

ForwardArgs forward_args(const megamoe_forward_args& a) {
  ForwardArgs call;
  call.hidden_states = view(a.hidden_states);
  call.hidden_states_scale = view(a.hidden_states_scale);
  call.scale_format = scale_format(a.scale_format);
  call.topk_ids = view(a.topk_ids);
  call.topk_weights = view(a.topk_weights);
  call.output = view(a.output);
  call.timeout_ns = a.timeout_ns;
  call.shared_weights = view(a.shared_weights);
  call.expert_map = view(a.expert_map);
  call.active_ranks = {a.active_ranks[0], a.active_ranks[1]};
  call.renormalize_weights = a.renormalize_weights != 0;
  call.cumulative_recv_counts = view(a.cumulative_recv_counts);
  if (a.swiglu_clamp != 0) call.swiglu_clamp = a.swiglu_clamp;
  return call;
}

Status read_config(const char* function, const megamoe_layer_config* given, LayerConfig& config) {
  megamoe_layer_config c = {};
  MEGAMOE_RETURN_IF_ERROR(read_struct(function, given, c));
  config.shape = {c.hidden, c.intermediate, c.num_experts, c.top_k};
  config.max_tokens_per_rank = c.max_tokens_per_rank;
  if (c.swiglu_clamp != 0) config.swiglu_clamp = c.swiglu_clamp;
  config.num_threads = c.num_threads;
  if (c.timeout_ns != 0) config.timeout_ns = c.timeout_ns;
  if (c.backend != nullptr) config.backend = c.backend;
  config.num_shared_experts = c.num_shared_experts;
  if (c.routed_scaling != 0) config.routed_scaling = c.routed_scaling;
  config.num_logical_experts = c.num_logical_experts;
  config.num_reserved_sms = c.num_reserved_sms;
  return {};
}

/// @param device_index  null: host memory
Status join(const char* function, const megamoe_process_options* given, const int32_t* device_index,
            megamoe_group** group) {
  if (group == nullptr) return null_argument(function, "group");
  megamoe_process_options c = {};
  MEGAMOE_RETURN_IF_ERROR(read_struct(function, given, c));
  ProcessGroupOptions options;
  if (c.num_ranks == 0) {
    Result<ProcessGroupOptions> read = process_group_from_environment();
    if (!read.ok()) return read.status();
    options = std::move(read).value();
  } else {
    options.rank = c.rank;
    options.num_ranks = c.num_ranks;
  }
  if (c.name != nullptr) options.name = c.name;
  if (c.rendezvous_dir != nullptr) options.rendezvous_dir = c.rendezvous_dir;
  if (c.timeout_ns != 0) options.timeout_ns = c.timeout_ns;
  Result<std::shared_ptr<SymmetricMemory>> memory =
      device_index == nullptr ? join_process_group(options) : join_cuda_process_group(options, *device_index);
  if (!memory.ok()) return memory.status();
  *group = new megamoe_group{std::move(memory).value()};
  return {};
}

/// Runs a call on a layer and keeps its sentence with the layer.
template <class Body>
megamoe_code on_layer(const char* function, megamoe_layer* layer, Body body) {
  if (layer == nullptr) return answer(null_argument(function, "layer"));
  const Status status = guarded(function, body);
  if (!status.ok()) layer->error = status.message();
  return answer(status);
}

}  // namespace
}  // namespace megamoe::capi

using namespace megamoe;        // NOLINT(google-build-using-namespace): this file only forwards
using namespace megamoe::capi;  // NOLINT(google-build-using-namespace)

const char* megamoe_version(void) { return MEGAMOE_VERSION; }

const char* megamoe_code_name(megamoe_code code) {
  if (code < MEGAMOE_OK || code > MEGAMOE_INTERNAL) return "unknown";
  return name(static_cast<Code>(code)).data();
}

const char* megamoe_last_error(void) { return last_error().c_str(); }

void megamoe_set_log_callback(megamoe_log_callback callback, void* user_data) {
  if (callback == nullptr) {
    api::set_log_sink({});
    return;
  }
  api::set_log_sink([callback, user_data](api::LogLevel level, std::string_view message) {
    callback(static_cast<int32_t>(level), std::string(message).c_str(), user_data);
  });
}

megamoe_code megamoe_thread_group_create(uint32_t num_ranks, megamoe_group** groups) {
  return answer(guarded("megamoe_thread_group_create", [&]() -> Status {
    if (groups == nullptr) return null_argument("megamoe_thread_group_create", "groups");
    auto members = make_thread_group(num_ranks);
    if (!members.ok()) return members.status();
    for (uint32_t rank = 0; rank < num_ranks; ++rank) groups[rank] = new megamoe_group{members.value()[rank]};
    return {};
  }));
}

megamoe_code megamoe_cuda_thread_group_create(uint32_t num_ranks, const int32_t* device_indices,
                                              megamoe_group** groups) {
  return answer(guarded("megamoe_cuda_thread_group_create", [&]() -> Status {
    if (device_indices == nullptr) return null_argument("megamoe_cuda_thread_group_create", "device_indices");
    if (groups == nullptr) return null_argument("megamoe_cuda_thread_group_create", "groups");
    auto members = make_cuda_thread_group(std::span(device_indices, num_ranks));
    if (!members.ok()) return members.status();
    for (uint32_t rank = 0; rank < num_ranks; ++rank) groups[rank] = new megamoe_group{members.value()[rank]};
    return {};
  }));
}

megamoe_code megamoe_process_group_join(const megamoe_process_options* options, megamoe_group** group) {
  return answer(guarded("megamoe_process_group_join",
                        [&]() -> Status { return join("megamoe_process_group_join", options, nullptr, group); }));
}

megamoe_code megamoe_cuda_process_group_join(const megamoe_process_options* options, int32_t device_index,
                                             megamoe_group** group) {
  return answer(guarded("megamoe_cuda_process_group_join", [&]() -> Status {
    return join("megamoe_cuda_process_group_join", options, &device_index, group);
  }));
}

uint32_t megamoe_group_rank(const megamoe_group* group) { return group == nullptr ? 0 : group->memory->rank(); }
uint32_t megamoe_group_num_ranks(const megamoe_group* group) {
  return group == nullptr ? 0 : group->memory->num_ranks();
}
void megamoe_group_destroy(megamoe_group* group) { delete group; }

megamoe_code megamoe_workspace_bytes(const megamoe_layer_config* config, uint32_t num_ranks, uint64_t* bytes) {
  return answer(guarded("megamoe_workspace_bytes", [&]() -> Status {
    if (bytes == nullptr) return null_argument("megamoe_workspace_bytes", "bytes");
    LayerConfig read;
    MEGAMOE_RETURN_IF_ERROR(read_config("megamoe_workspace_bytes", config, read));
    const Result<LayerPlan> plan = MoeLayer::plan(read, num_ranks);
    if (!plan.ok()) return plan.status();
    *bytes = plan->workspace_bytes;
    return {};
  }));
}

megamoe_code megamoe_layer_create(const megamoe_layer_config* config, megamoe_group* group, megamoe_layer** layer) {
  return answer(guarded("megamoe_layer_create", [&]() -> Status {
    if (group == nullptr) return null_argument("megamoe_layer_create", "group");
    if (layer == nullptr) return null_argument("megamoe_layer_create", "layer");
    LayerConfig known;
    const Status read = read_config("megamoe_layer_create", config, known);
    // The call is collective: a configuration that cannot be read goes on as an empty one, so that no other rank waits.
    Result<MoeLayer> made = MoeLayer::create(read.ok() ? known : LayerConfig{}, group->memory);
    if (!read.ok()) return read;
    if (!made.ok()) return made.status();
    *layer = new megamoe_layer{std::move(made).value(), {}};
    return {};
  }));
}

megamoe_code megamoe_layer_load_weights(megamoe_layer* layer, const megamoe_expert_weights* weights) {
  return on_layer("megamoe_layer_load_weights", layer, [&]() -> Status {
    ExpertWeights read;
    MEGAMOE_RETURN_IF_ERROR(read_weights("megamoe_layer_load_weights", weights, read));
    return layer->layer.load_weights(read);
  });
}

megamoe_code megamoe_layer_prepare_weights(megamoe_layer* layer, const megamoe_expert_weights* weights,
                                           megamoe_weights** prepared) {
  return on_layer("megamoe_layer_prepare_weights", layer, [&]() -> Status {
    if (prepared == nullptr) return null_argument("megamoe_layer_prepare_weights", "prepared");
    ExpertWeights read;
    MEGAMOE_RETURN_IF_ERROR(read_weights("megamoe_layer_prepare_weights", weights, read));
    Result<std::shared_ptr<const PreparedWeights>> made = layer->layer.prepare_weights(read);
    if (!made.ok()) return made.status();
    *prepared = new megamoe_weights{std::move(made).value()};
    return {};
  });
}

megamoe_code megamoe_layer_use_weights(megamoe_layer* layer, const megamoe_weights* prepared) {
  return on_layer("megamoe_layer_use_weights", layer, [&] {
    if (prepared == nullptr) return null_argument("megamoe_layer_use_weights", "prepared");
    return layer->layer.use_weights(prepared->prepared);
  });
}

void megamoe_weights_destroy(megamoe_weights* prepared) { delete prepared; }

megamoe_code megamoe_layer_forward(megamoe_layer* layer, const megamoe_forward_args* args) {
  return on_layer("megamoe_layer_forward", layer, [&]() -> Status {
    megamoe_forward_args a = {};
    Status read = read_struct("megamoe_layer_forward", args, a);
    std::optional<void*> stream;
    if (read.ok()) read = read_stream(a, stream);
    // The call is collective: arguments that cannot be read become empty ones, which every rank learns to be refused.
    ForwardArgs call;
    if (read.ok()) call = forward_args(a);
    call.cuda_stream = stream;
    const Status status = layer->layer.forward(call);
    return read.ok() ? status : read;
  });
}

megamoe_code megamoe_layer_finish(megamoe_layer* layer) {
  return on_layer("megamoe_layer_finish", layer, [&] { return layer->layer.finish(); });
}

megamoe_code megamoe_layer_input_views(megamoe_layer* layer, megamoe_tensor* codes, megamoe_tensor* scales) {
  return on_layer("megamoe_layer_input_views", layer, [&]() -> Status {
    if (codes == nullptr) return null_argument("megamoe_layer_input_views", "codes");
    if (scales == nullptr) return null_argument("megamoe_layer_input_views", "scales");
    const InputViews views = layer->layer.input_views();
    *codes = tensor(views.codes);
    *scales = tensor(views.scales);
    return {};
  });
}

megamoe_code megamoe_layer_reset(megamoe_layer* layer) {
  return on_layer("megamoe_layer_reset", layer, [&] { return layer->layer.reset(); });
}

const char* megamoe_layer_error(const megamoe_layer* layer) { return layer == nullptr ? "" : layer->error.c_str(); }
void megamoe_layer_destroy(megamoe_layer* layer) { delete layer; }
