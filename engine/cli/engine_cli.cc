#include "engine/cli/engine_cli.h"

#include <CLI/CLI.hpp>

#include "engine/backend/device/accelerator.h"
#include "engine/cli/ranges.h"

namespace servelab {

CLI::App* declare_generate(CLI::App* app, GenerateOptions* options) {
  GenerateOptions& g = *options;
  CLI::App* command =
      app->add_subcommand("generate", "token ids in, token ids out, on a real engine");
  command
      ->add_option(
          "--model", g.model,
          "a name in base/model/, or a Hugging Face folder (its generation_config.json is not "
          "read: decoding is greedy unless asked, and no token ends it)")
      ->required();
  command->add_option("--backend", g.backend, "an engine")
      ->check(CLI::IsMember(accelerator_names()))
      ->capture_default_str();
  command->add_option("--adapter", g.adapter, "a PEFT folder");
  command->add_option("--tokens", g.tokens, "the prompt's ids, such as 1,15,7")->required();
  command->add_option("--max-tokens", g.max_tokens, "tokens to generate")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--dtype", g.dtype,
                   "auto, bf16, f16 or f32; auto: that of the stored matrices, f32 for several")
      ->check(CLI::IsMember({"auto", "bf16", "f16", "f32"}))
      ->capture_default_str();
  command->add_option("--threads", g.threads, "0: all processors")->check(CLI::Range(0, 1024));
  command->add_flag("--merged", g.merged, "fold the adapter into the weights first");
  command->add_option("--temperature", g.sampling.temperature, "0: greedy")
      ->check(number_in(0.0, 100.0));
  command->add_option("--top-p", g.sampling.top_p, "nucleus mass")->check(number_in(1e-6, 1.0));
  command->add_option("--seed", g.sampling.seed, "of sampling")->check(seed());
  return command;
}

CLI::App* declare_calibrate(CLI::App* app, CalibrateOptions* calibrate,
                            CalibrateFromOptions* from) {
  CalibrateOptions& options = *calibrate;
  CLI::App* command = app->add_subcommand(
      "calibrate", "measure a real engine and write a hardware profile for the twin");
  command->add_option("--backend", options.backend, "an engine")
      ->check(CLI::IsMember(accelerator_names()))
      ->capture_default_str();
  CLI::Option* const model = command->add_option("--model", options.model, "a name in base/model/");
  CLI::Option* const rows =
      command
          ->add_option("--from", from->rows,
                       "CSV of another server's steps or runs (engine/README.md), instead of "
                       "measuring")
          ->check(CLI::ExistingFile)
          ->excludes(model);
  rows->needs(
      command->add_option("--spec", from->spec, "with --from: what the rows are of")->needs(rows));
  command
      ->add_option("--terms-from", from->terms_from,
                   "with --from: a fitted profile, for terms that the rows cannot tell apart")
      ->needs(rows);
  command
      ->add_option("--expect", from->expect,
                   "with --from: CSV whose settings are runs to come, for the error to expect of "
                   "them; else of the spec's own")
      ->check(CLI::ExistingFile)
      ->needs(rows);
  command->add_option("--out", options.out,
                      "the profile; default: results/calibration/<name>.yaml");
  command->add_option("--threads", options.threads, "0: all processors")
      ->check(CLI::Range(0, 1024));
  command->add_option("--lora", options.lora, "layers that adapters change, such as q,k,v,o")
      ->delimiter(',');
  command->add_flag("--quick", options.quick, "fewer measurements: half a minute");
  return command;
}

CLI::App* declare_op_times(CLI::App* app, OpTimesOptions* options) {
  CLI::App* command = app->add_subcommand(
      "op-times", "the cost model's times of shapes on stdin, for data/fit_hardware.py");
  command->group("");
  command->add_option("OP", options->op, "a section of a hardware profile")->required();
  command->add_option("PROFILE", options->profile, "a hardware profile: its name or file")
      ->required();
  return command;
}

}  // namespace servelab
