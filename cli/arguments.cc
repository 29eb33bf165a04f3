// The commands and their options, as help text and grammar. The only file that sees CLI11.
#include "cli/arguments.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <vector>

namespace megamoe::cli {
namespace {

constexpr std::array kCommands = {"run", "plan", "inspect", "models", "bench", "doctor"};
constexpr const char* kVersionText = "megamoe " MEGAMOE_VERSION;

/// Collects the text of every option of one command.
class Grammar {
 public:
  Grammar(CLI::App& parent, const char* name, const char* description, const char* footer)
      : app_(parent.add_subcommand(name, description)) {
    app_->footer(footer);
    app_->get_formatter()->column_width(34);
    app_->add_flag("--json", json_, "Print one JSON object and nothing else")->group("Output");
  }

  void option(const char* group, const char* name, const char* type, const char* description) {
    CLI::Option* added = app_->add_option(std::string("--") + name, texts_[name], description);
    added->type_name(type)->group(group)->expected(1);
    options_[name] = added;
  }

  /// An argument without dashes, and the same as an option.
  void positional(const char* name, const char* type, const char* description) {
    CLI::Option* added = app_->add_option(std::string("--") + name + "," + name, texts_[name], description);
    added->type_name(type)->expected(1);
    options_[name] = added;
  }

  void flag(const char* group, const char* name, const char* description) {
    options_[name] = app_->add_flag(std::string("--") + name, flags_[name], description)->group(group);
  }

  bool parsed() const { return app_->parsed(); }
  bool json() const { return json_; }
  std::string name() const { return app_->get_name(); }

  std::map<std::string, std::string> given() const {
    std::map<std::string, std::string> result;
    for (const auto& [name, option] : options_) {
      if (option->count() == 0) continue;
      const auto text = texts_.find(name);
      result[name] = text == texts_.end() ? std::string() : text->second;
    }
    return result;
  }

 private:
  CLI::App* app_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, bool> flags_;
  std::map<std::string, CLI::Option*> options_;
  bool json_ = false;
};

void add_layer_options(Grammar& grammar) {
  grammar.option("Layer", "model", "NAME", "A published model's shape (megamoe models), with random weights");
  grammar.option("Layer", "checkpoint", "DIR", "A checkpoint folder: config.json and safetensors");
  grammar.option("Layer", "layer", "N", "The layer of the checkpoint, from 0");
}

void add_execution_options(Grammar& grammar) {
  grammar.option("Execution", "ranks", "R", "Ranks that share the experts, 1 to 72 (default 1)");
  grammar.option("Execution", "device", "cpu|cuda", "Where the ranks run (default cpu)");
  grammar.option("Execution", "block-rows", "N", "Rows of a block, for speed and memory only; 0 chooses (default)");
}

void add_random_options(Grammar& grammar, const char* tokens_help) {
  grammar.option("Random layer", "tokens", "T|T0,T1,...", tokens_help);
  grammar.option("Random layer", "routing", "HOW", "uniform, zipf:S, hot, one-expert or one-rank (default uniform)");
  grammar.option("Random layer", "seed", "S", "Of weights, tokens and routing (default 1)");
}

void add_thread_options(Grammar& grammar) {
  grammar.option("Execution", "threads", "N", "Worker threads of each rank; 0 shares the cores (default)");
  grammar.option("Execution", "timeout-ms", "N", "Longest wait for another rank (default 300000)");
}

struct AllGrammars {
  explicit AllGrammars(CLI::App& app)
      : run(app, "run", "Run one MoE layer, check it and say how it went",
            "Examples:\n"
            "  megamoe run --model tiny --ranks 4\n"
            "  megamoe run --model deepseek-v4-flash --ranks 8 --tokens 16\n"
            "  megamoe run --checkpoint DIR --layer 3 --inputs tokens.safetensors --ranks 4 --output out.safetensors\n"
            "  megamoe run --model tiny --ranks 4 --processes\n"
            "  megamoe run --model tiny --ranks 4 --device cuda --gpus 0,1 --processes\n"
            "Under torchrun or mpirun every process is one rank, and rank 0 alone prints.\n"
            "The inputs file holds hidden_states [T,H] BF16; the checkpoint's router chooses their experts. With\n"
            "topk_ids [T,K] and topk_weights [T,K] in the file, --part routed runs the routed experts alone.\n"
            "Exit code: 0 ok, 1 mismatch, 2 bad input, 3 runtime error."),
        plan(app, "plan", "Say what a layer would allocate and run, without allocating it",
             "Example:\n  megamoe plan --model deepseek-v3 --ranks 8 --tokens 128"),
        inspect(
            app, "inspect", "Say what a checkpoint holds, layer by layer, and what would be done with it",
            "Example:\n"
            "  megamoe inspect DIR\n"
            "Reads config.json and the headers of the files, no weights. Exit code 2 where experts would be refused."),
        models(app, "models", "List the models with a confirmed shape, and those refused with the reason", ""),
        bench(app, "bench", "Time the layer; one JSON object per line on stdout, a table on stderr",
              "Example:\n"
              "  megamoe bench --model qwen3-30b-a3b --ranks 2 --tokens 1,16,64 --repeat 10\n"
              "  megamoe bench --only gemm --min-ratio 0.5\n"
              "A layer's line carries the floor measured in the same run: the bytes of the weights that are read over\n"
              "the memory's read rate, or the multiply-adds over the cores' rate, whichever is longer. Then the FP8\n"
              "GEMM alone is timed beside OpenBLAS sgemm, where that is installed.\n"
              "With --device cuda the ranks share the first GPU, --model and --routing take several names separated\n"
              "by commas, and every combination is timed:\n"
              "  megamoe bench --device cuda --model flash-slice,pro-slice --tokens 1,128,8192 --append h200.jsonl"),
        doctor(app, "doctor", "Describe this machine: CPU, memory, limits, GPUs, environment", "") {
    add_layer_options(run);
    run.option("Checkpoint", "inputs", "FILE", "Safetensors file with tokens");
    run.option("Checkpoint", "part", "auto|block|routed",
               "The whole MoE block, or the routed experts with the file's routing (default auto)");
    run.option("Checkpoint", "compare", "TENSOR", "Tensor of the inputs file to compare the output with");
    add_random_options(run, "Tokens of every rank, or one number per rank (default 16)");
    add_execution_options(run);
    add_thread_options(run);
    run.flag("Execution", "processes", "A process for each rank instead of a thread");
    run.option("Execution", "gpus", "G0,G1,...", "With --device cuda: GPUs that the ranks use in turn (default all)");
    run.option("Output", "output", "FILE", "Write the output rows, BF16 [T,H], as tensor 'output'");
    run.option("Output", "check", "all|rows:N|none",
               "Rows compared with the FP64 oracle (default: all below 2 GMAC of work, else 64)");

    add_layer_options(plan);
    plan.option("Layer", "tokens", "T", "Most tokens of a rank in one call (default 16)");
    add_execution_options(plan);
    plan.option("Execution", "threads", "N", "Worker threads of each rank; 0 shares the cores (default)");

    inspect.positional("checkpoint", "DIR", "A checkpoint folder: config.json and safetensors");
    inspect.option("Layer", "layer", "N", "Only this layer, from 0");

    bench.option("Layer", "model", "NAME", "A published model's shape (default tiny; on a GPU flash-slice)");
    add_random_options(bench, "Tokens of every rank; several are timed in turn (default 16)");
    bench.option("Execution", "repeat", "N", "Timed calls for each number of tokens (default 10; on a GPU 20)");
    add_execution_options(bench);
    add_thread_options(bench);
    bench.option("Parts", "only", "layer|gemm", "One part (default both)");
    bench.option("Parts", "min-ratio", "X", "Exit 1 where the GEMM is below X times the rate of OpenBLAS");
    bench.option("On a GPU", "protocol", "cold|steady|cold,steady", "How calls follow each other (default both)");
    bench.option("On a GPU", "input", "fp8|bf16|fp8,bf16", "Tokens in place, or quantised in the call (default both)");
    bench.option("On a GPU", "append", "FILE", "Append a JSON line for each figure");
  }

  std::array<const Grammar*, 6> all() const { return {&run, &plan, &inspect, &models, &bench, &doctor}; }

  Grammar run, plan, inspect, models, bench, doctor;
};

std::string command_list() {
  std::string names;
  for (const char* command : kCommands) names += (names.empty() ? "" : ", ") + std::string(command);
  return names;
}

/// CLI11's refusal as one of this project's sentences.
Status usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, const char* const* argv) {
  const auto chosen = app.get_subcommands();
  if (!chosen.empty()) {
    const std::string where = "megamoe " + chosen.back()->get_name();
    const std::string help = "; see " + where + " --help";
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
      const std::vector<std::string> extras = app.remaining(true);
      const std::string first = extras.empty() ? std::string() : extras.front();
      return {Code::kInvalidArgument,
              where + ": every argument must be an option of this command, got '" + first + "'" + help};
    }
    return {Code::kInvalidArgument,
            where + ": every option must be given once and with one value, got " + error.what() + help};
  }
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") continue;
    return {Code::kInvalidArgument, "megamoe: the first argument must be a command (" + command_list() + "), got '" +
                                        word + "'; see megamoe --help"};
  }
  return {Code::kInvalidArgument,
          "megamoe: a command must be given (" + command_list() + "), got none; see megamoe --help"};
}

}  // namespace

std::string Arguments::get(const std::string& name) const {
  const auto found = values.find(name);
  return found == values.end() ? std::string() : found->second;
}

bool wants_json(int argc, const char* const* argv) {
  return std::any_of(argv + std::min(argc, 1), argv + argc,
                     [](const char* word) { return std::string_view(word) == "--json"; });
}

std::string command_of(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    for (const char* command : kCommands) {
      if (std::string_view(argv[i]) == command) return command;
    }
  }
  return "megamoe";
}

Result<Arguments> parse_arguments(int argc, const char* const* argv) {
  CLI::App app("Expert-parallel FP8 Mixture-of-Experts layers: run, check and explain one", "megamoe");
  app.set_version_flag("--version", kVersionText, "Print the version");
  bool json = false;
  app.add_flag("--json", json, "With --version: print JSON");
  app.require_subcommand(1);
  app.footer("megamoe COMMAND --help explains a command. Exit code: 0 ok, 1 mismatch, 2 bad input, 3 runtime error.");
  app.get_formatter()->column_width(34);
  const AllGrammars grammars(app);

  Arguments arguments;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    arguments.command = "help";
    arguments.text = app.help();
    return arguments;
  } catch (const CLI::CallForVersion&) {
    arguments.command = "version";
    arguments.text = std::string(kVersionText) + "\n";
    return arguments;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, argc, argv);
  }
  for (const Grammar* grammar : grammars.all()) {
    if (!grammar->parsed()) continue;
    arguments.command = grammar->name();
    arguments.values = grammar->given();
    arguments.json = grammar->json() || json;
  }
  return arguments;
}

}  // namespace megamoe::cli
