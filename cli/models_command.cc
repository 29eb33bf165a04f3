// `megamoe models`: the table of presets.
#include <fmt/format.h>

#include "api/models.h"
#include "cli/commands.h"
#include "cli/text_format.h"

namespace megamoe::cli {
namespace {

double layer_gigabytes(const MoeShape& shape) {
  return 3.0 * shape.hidden * shape.intermediate * shape.num_experts / 1e9;
}

void print_models() {
  fmt::print("{:<20} {:>6} {:>12} {:>7} {:>5} {:>12}  {}\n", "name", "hidden", "intermediate", "experts", "top-k",
             "GB per layer", "model");
  for (const api::ModelPreset& model : api::model_presets()) {
    if (model.refused()) continue;
    fmt::print("{:<20} {:>6} {:>12} {:>7} {:>5} {:>12.2f}  {}\n", model.name, model.shape.hidden,
               model.shape.intermediate, model.shape.num_experts, model.shape.top_k, layer_gigabytes(model.shape),
               model.title);
  }
  fmt::print("\nnotes\n");
  for (const api::ModelPreset& model : api::model_presets()) {
    if (model.refused()) continue;
    if (model.clamp) fmt::print("  {}: SwiGLU clamp {:g}\n", model.name, *model.clamp);
    if (!model.note.empty()) fmt::print("  {}: {}\n", model.name, model.note);
  }
  fmt::print("\nrefused\n");
  for (const api::ModelPreset& model : api::model_presets()) {
    if (model.refused()) fmt::print("  {}: {}\n", model.name, model.refusal);
  }
}

void print_models_json() {
  JsonWriter json;
  begin_answer(json, "models", Verdict::kOk);
  json.key("models").begin_array();
  for (const api::ModelPreset& model : api::model_presets()) {
    json.begin_object();
    json.key("name").text(model.name);
    json.key("title").text(model.title);
    json.key("shape");
    write_shape(json, model.shape);
    json.key("swiglu_clamp");
    model.clamp ? json.real(*model.clamp) : json.null();
    json.key("supported").boolean(!model.refused());
    json.key("refusal");
    model.refused() ? json.text(model.refusal) : json.null();
    json.key("note");
    model.note.empty() ? json.null() : json.text(model.note);
    json.key("source").text(model.source);
    json.end_object();
  }
  json.end_array().end_object();
  print_json(json);
}

}  // namespace

Result<Verdict> models_command(const Arguments& arguments) {
  if (arguments.json) {
    print_models_json();
  } else {
    print_models();
  }
  return Verdict::kOk;
}

}  // namespace megamoe::cli
