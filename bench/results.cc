// Keys that are missing or of another type are errors: a figure that is half read proves nothing.
#include "bench/results.h"

#include <fmt/format.h>

#include <fstream>

#include "api/models.h"
#include "io/json_value.h"

namespace megamoe::bench {
namespace {

class Line {
 public:
  Line(io::JsonValue value, std::string where) : value_(std::move(value)), where_(std::move(where)) {}

  const Status& status() const { return status_; }
  std::string text(const char* key) {
    const io::JsonValue* found = value_.find(key);
    if (found != nullptr && found->kind == io::JsonValue::Kind::kString) return found->text;
    return fail(key, "text"), "";
  }
  double real(const char* key) {
    const io::JsonValue* found = value_.find(key);
    if (found != nullptr && found->is_number()) return found->real_value;
    return fail(key, "a number"), 0;
  }
  uint32_t whole(const char* key) { return static_cast<uint32_t>(real(key)); }
  bool has(const char* key) const { return value_.find(key) != nullptr; }

 private:
  void fail(const char* key, const char* what) {
    if (status_.ok()) status_ = {Code::kBadFile, fmt::format("{}: \"{}\" must be {}", where_, key, what)};
  }

  io::JsonValue value_;
  std::string where_;
  Status status_;
};

Result<Figure> read_figure(const std::string& text, const std::string& where) {
  auto parsed = io::parse_json_value(text, where);
  if (!parsed.ok()) return parsed.status();
  Line line(std::move(parsed).value(), where);
  Figure figure;
  figure.model = line.text("model");
  figure.protocol = line.text("protocol");
  figure.routing = line.text("routing");
  figure.input = line.text("input");
  figure.num_ranks = line.whole("ranks");
  figure.num_gpus = line.whole("gpus");
  figure.tokens_per_rank = line.whole("tokens_per_rank");
  figure.median_us = line.real("median_us");
  if (line.has("block_rows")) figure.block_rows = line.whole("block_rows");
  const uint32_t experts = line.whole("experts_per_rank") * figure.num_ranks;
  MEGAMOE_RETURN_IF_ERROR(line.status());
  const auto model = api::find_model(figure.model);
  if (!model.ok()) return Status{Code::kBadFile, fmt::format("{}: {}", where, model.status().message())};
  figure.shape = model->shape;
  figure.shape.num_experts = experts;
  return figure;
}

}  // namespace

Result<std::vector<Figure>> read_figures(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Status{Code::kBadFile, fmt::format("bench.read_figures: {} must be a file that can be read", path)};
  std::vector<Figure> figures;
  std::string text;
  for (uint32_t number = 1; std::getline(file, text); ++number) {
    auto figure = read_figure(text, fmt::format("{}, line {}", path, number));
    if (!figure.ok()) return figure.status();
    figures.push_back(std::move(figure).value());
  }
  return figures;
}

}  // namespace megamoe::bench
