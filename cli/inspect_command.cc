// `megamoe inspect`: what a checkpoint folder holds, layer by layer, and what would be done with it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/text_format.h"
#include "io/model_config.h"
#include "io/moe_checkpoint.h"

namespace megamoe::cli {
namespace {

struct Inspection {
  std::string folder;
  uint64_t num_files = 0;
  uint64_t num_tensors = 0;
  uint64_t num_bytes = 0;
  std::optional<io::ModelConfig> config;  ///< None where config.json is refused; then every layer is.
  std::vector<io::LayerDescription> layers;

  /// Why experts would not be loaded, the first reason.
  Status refusal() const {
    for (const io::LayerDescription& layer : layers) {
      if (!layer.experts_status.ok()) return layer.experts_status;
    }
    return {};
  }
};

Result<Inspection> inspect(const InspectOptions& options) {
  auto files = io::Checkpoint::open(options.folder);
  if (!files.ok()) return files.status();
  Inspection inspection;
  inspection.folder = options.folder;
  inspection.num_files = files->files().size();
  inspection.num_tensors = files->tensors().size();
  for (const auto& tensor : files->tensors()) inspection.num_bytes += tensor.info->num_bytes;
  auto config = io::read_model_config(options.folder);
  const Status config_status = config.status();
  if (config.ok()) inspection.config = config.value();
  const io::MoeCheckpoint checkpoint(std::move(files).value(), config.ok() ? config.value() : io::ModelConfig());

  std::vector<uint32_t> layers = checkpoint.layers();
  if (options.layer) layers = {*options.layer};
  for (const uint32_t layer : layers) {
    inspection.layers.push_back(config_status.ok() ? checkpoint.describe(layer)
                                                   : checkpoint.describe_names(layer, config_status));
  }
  if (layers.empty()) {
    return config_status.ok() ? Status(Code::kBadFile, fmt::format("megamoe inspect: {} must have a layer with experts "
                                                                   "under a known name, found none among {} tensors",
                                                                   options.folder, inspection.num_tensors))
                              : config_status;
  }
  return inspection;
}

std::string replaced(std::string text, const std::string& from, std::string_view to) {
  for (size_t place = text.find(from); place != std::string::npos; place = text.find(from, place + to.size())) {
    text.replace(place, from.size(), to);
  }
  return text;
}

/// What a description says besides the number of its layer.
std::string without_number(const io::LayerDescription& layer) {
  const std::string all = fmt::format(
      "{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", layer.family, layer.order, layer.weight, layer.scale, layer.format, layer.router,
      layer.shared, layer.experts_status.message(), layer.router_status.message(), layer.shared_status.message());
  return replaced(replaced(all, fmt::format("layers.{}.", layer.layer), "layers.N."),
                  fmt::format("layer {} ", layer.layer), "layer N ");
}

std::string experts_text(const io::LayerDescription& layer) {
  if (!layer.experts_status.ok()) return "REFUSED: " + layer.experts_status.message();
  if (layer.format == "E4M3") return "taken as they are";
  if (layer.format == "MXFP4") return "MXFP4, expanded to E4M3 with one scale per 128 x 128 block";
  return fmt::format("{}, packed to E4M3 with one scale per 128 x 128 block", layer.format);
}

std::string router_text(const io::LayerDescription& layer) {
  if (layer.router_status.ok()) return layer.router;
  return "not run, --part routed is: " + layer.router_status.message();
}

std::string shared_text(const io::LayerDescription& layer) {
  if (!layer.shared_status.ok()) return "not run, --part routed is: " + layer.shared_status.message();
  return layer.shared.empty() ? "none" : layer.shared;
}

void print_layers(const std::vector<io::LayerDescription>& layers) {
  for (size_t begin = 0; begin < layers.size();) {
    size_t end = begin + 1;
    while (end < layers.size() && layers[end].layer == layers[end - 1].layer + 1 &&
           without_number(layers[end]) == without_number(layers[begin])) {
      ++end;
    }
    const io::LayerDescription& first = layers[begin];
    if (end - begin == 1) {
      fmt::print("layer {}\n", first.layer);
    } else {
      fmt::print("layers {} to {}, the first of them\n", first.layer, layers[end - 1].layer);
    }
    if (!first.family.empty()) fmt::print("  names    {}: {}\n", first.family, first.order);
    if (!first.weight.empty()) fmt::print("  weights  {}\n", first.weight);
    if (!first.scale.empty()) fmt::print("  scales   {}\n", first.scale);
    fmt::print("  experts  {}\n", experts_text(first));
    if (first.experts_status.ok()) {
      fmt::print("  router   {}\n", router_text(first));
      fmt::print("  shared   {}\n", shared_text(first));
    }
    begin = end;
  }
}

void print_inspection(const Inspection& inspection) {
  fmt::print("checkpoint {}\n", inspection.folder);
  fmt::print("files      {}, {} tensors, {}\n", inspection.num_files, inspection.num_tensors,
             bytes_text(inspection.num_bytes));
  if (inspection.config) {
    const io::ModelConfig& config = *inspection.config;
    fmt::print("model      {}: hidden {}, intermediate {}, {} experts, top-{}{}\n",
               config.model_type.empty() ? "(no model_type)" : config.model_type, config.shape.hidden,
               config.shape.intermediate, config.shape.num_experts, config.shape.top_k,
               config.swiglu_limit ? fmt::format(", SwiGLU clamp {:g}", *config.swiglu_limit) : "");
  }
  print_layers(inspection.layers);
  const Status refusal = inspection.refusal();
  const bool block = std::all_of(inspection.layers.begin(), inspection.layers.end(), [](const auto& layer) {
    return layer.router_status.ok() && layer.shared_status.ok();
  });
  fmt::print("result     {}\n", !refusal.ok() ? "refused"
                                : block       ? "whole blocks can be run"
                                              : "routed experts can be run");
  if (refusal.ok()) {
    fmt::print("next\n  megamoe run --checkpoint {} --layer {} --inputs tokens.safetensors{}\n", inspection.folder,
               inspection.layers.front().layer, block ? "" : " --part routed");
  }
  std::fflush(stdout);
  if (!refusal.ok()) fmt::print(stderr, "error: {}\n", refusal.message());
}

void print_inspection_json(const Inspection& inspection) {
  const Status refusal = inspection.refusal();
  const auto text_or_null = [](JsonWriter& json, const char* key, const std::string& text) {
    json.key(key);
    text.empty() ? json.null() : json.text(text);
  };
  JsonWriter json;
  begin_answer(json, "inspect", refusal.ok() ? Verdict::kOk : Verdict::kBadInput);
  if (!refusal.ok()) {
    json.key("error").begin_object();
    json.key("code").text(name(refusal.code()));
    json.key("message").text(refusal.message());
    json.end_object();
  }
  json.key("checkpoint").text(inspection.folder);
  json.key("files").whole(inspection.num_files);
  json.key("tensors").whole(inspection.num_tensors);
  json.key("bytes").whole(inspection.num_bytes);
  text_or_null(json, "model_type", inspection.config ? inspection.config->model_type : "");
  json.key("shape");
  inspection.config ? write_shape(json, inspection.config->shape) : void(json.null());
  json.key("layers").begin_array();
  for (const io::LayerDescription& layer : inspection.layers) {
    json.begin_object();
    json.key("layer").whole(layer.layer);
    text_or_null(json, "names", layer.family);
    text_or_null(json, "order", layer.order);
    text_or_null(json, "weights", layer.weight);
    text_or_null(json, "scales", layer.scale);
    text_or_null(json, "format", layer.format);
    text_or_null(json, "router", layer.router);
    text_or_null(json, "shared", layer.shared);
    text_or_null(json, "experts_refusal", layer.experts_status.message());
    text_or_null(json, "router_refusal", layer.router_status.message());
    text_or_null(json, "shared_refusal", layer.shared_status.message());
    json.end_object();
  }
  json.end_array().end_object();
  print_json(json);
}

}  // namespace

Result<Verdict> inspect_command(const Arguments& arguments) {
  const auto options = inspect_options(arguments);
  if (!options.ok()) return options.status();
  const auto inspection = inspect(options.value());
  if (!inspection.ok()) return inspection.status();
  if (arguments.json) {
    print_inspection_json(inspection.value());
  } else {
    print_inspection(inspection.value());
  }
  return inspection->refusal().ok() ? Verdict::kOk : Verdict::kBadInput;
}

}  // namespace megamoe::cli
