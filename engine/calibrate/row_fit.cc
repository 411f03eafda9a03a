#include "engine/calibrate/row_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/calibrate/nnls.h"
#include "engine/calibrate/twin_errors.h"
#include "engine/core/check.h"
#include "engine/run/point.h"

namespace servelab {
namespace {

constexpr double kUsPerSecond = 1e6;
constexpr double kBump = 0.01;
constexpr double kFreeShare = 0.985;   // served of offered: all that come are served
constexpr double kMostFeedback = 0.9;  // beyond it the line is no model of the run
constexpr int kRounds = 6;             // of weights that follow from the fit, which settle by then
// A term is told apart where at least so much of it, as a root mean square, is not made of others.
constexpr double kOwnShare = 0.02;
constexpr int kMostLeftOut = 16;  // values of a key, to leave one out after another

struct Demand {
  std::vector<double> shares;  // of requests, by adapter
  double mean_rank = 0;        // over requests' adapters
  double prompt = 0, output = 0;
  double context = 0;  // keys that a decode reads: long outputs have more decodes, and longer ones
  double offered = 0;  // requests per second
  double seconds = 0;
  int slots = 0;
  int max_waiting = 0;
};

Demand demand_of(const PointSettings& settings, const std::string& data_dir) {
  const Workload workload = build_point_workload(settings, data_dir).workload;
  Demand demand;
  demand.shares.resize(workload.adapters.size());
  const auto requests = static_cast<double>(workload.requests.size());
  for (const Request& request : workload.requests) {
    demand.prompt += request.prompt_tokens / requests;
    demand.output += request.output_tokens / requests;
    demand.context +=
        request.output_tokens * (request.prompt_tokens + request.output_tokens / 2.0) / requests;
    if (request.adapter == kBaseModel) continue;
    demand.shares[index(request.adapter)] += 1 / requests;
    demand.mean_rank += workload.adapters[index(request.adapter)].rank / requests;
  }
  const double last = workload.requests.empty() ? 0 : to_seconds(workload.requests.back().arrival);
  demand.seconds = settings.cluster.stop_at_s > 0 ? settings.cluster.stop_at_s : last;
  demand.context /= std::max(1.0, demand.output);
  demand.max_waiting = settings.cluster.max_waiting;
  demand.offered = last > 0 ? requests / last : 0;
  demand.slots = settings.engine.adapter_slots > 0 ? settings.engine.adapter_slots
                                                   : static_cast<int>(workload.adapters.size());
  return demand;
}

// Terms of a step with `decodes` requests and `prompt` tokens.
TermValues terms_of(const Demand& demand, double decodes, double prompt, double adapters,
                    double waiting, double context) {
  const double rows = decodes + prompt;
  const double with_adapter = adapters > 0 ? rows : 0;
  TermValues terms{};
  at(terms, RowTerm::kStep) = 1;
  at(terms, RowTerm::kToken) = rows;
  at(terms, RowTerm::kAdapter) = adapters;
  at(terms, RowTerm::kAdapterRank) = adapters * demand.mean_rank;
  at(terms, RowTerm::kPair) = with_adapter * adapters;
  at(terms, RowTerm::kSlot) = adapters > 0 ? demand.slots : 0;
  at(terms, RowTerm::kWaiting) = waiting;
  at(terms, RowTerm::kContext) = decodes * context;
  at(terms, RowTerm::kLoraToken) = with_adapter;
  at(terms, RowTerm::kPromptToken) = prompt;
  return terms;
}

TermValues terms_of_run(const Demand& demand, double requests_per_s, double itl_s) {
  const double decodes = requests_per_s * demand.output * itl_s;
  double adapters = 0;
  for (const double share : demand.shares) adapters += 1 - std::exp(-share * decodes);
  adapters = std::min<double>(adapters, demand.slots);
  // Those that are not served wait, from the first on, as far as the queue goes.
  const double growth = std::max(0.0, demand.offered - requests_per_s);
  double waiting = growth * demand.seconds / 2;
  if (demand.max_waiting > 0 && growth * demand.seconds > demand.max_waiting) {
    waiting = demand.max_waiting * (1 - demand.max_waiting / (2 * growth * demand.seconds));
  }
  if (requests_per_s >= kFreeShare * demand.offered) waiting = 0;
  return terms_of(demand, decodes, requests_per_s * demand.prompt * itl_s, adapters, waiting,
                  demand.context);
}

double symmetric_errors(const std::vector<const RowEquation*>& rows, const TermValues& us) {
  double sum = 0;
  for (const RowEquation* row : rows) {
    double fitted = 0;
    for (std::size_t i = 0; i < us.size(); ++i) fitted += us[i] * row->terms[i] / kUsPerSecond;
    sum += symmetric_error(fitted, row->itl_s);
  }
  return rows.empty() ? std::numeric_limits<double>::quiet_NaN()
                      : sum / static_cast<double>(rows.size());
}

// Runs whose latency feeds back weigh by how much of an error in cost they show: ITL = f(B) and B =
// rate x output x ITL, so that a change of f shows 1 / (1 - df/dB B / ITL) times.
TermValues solve(const std::vector<const RowEquation*>& rows, const std::vector<RowTerm>& kept) {
  TermValues us{};
  for (int round = 0; round < kRounds; ++round) {
    LeastSquares problem(kept.size());
    for (const RowEquation* row : rows) {
      double grown = 0;
      for (std::size_t i = 0; i < us.size(); ++i) grown += us[i] * row->growth[i] / kUsPerSecond;
      const double feedback =
          row->feeds_back ? std::clamp(grown / (kBump * row->itl_s), 0.0, kMostFeedback) : 0;
      std::vector<double> features;
      for (const RowTerm term : kept) features.push_back(at(row->terms, term));
      problem.add(features, row->itl_s * kUsPerSecond,
                  1 / ((1 - feedback) * row->itl_s * kUsPerSecond));
    }
    const std::vector<double> solution = problem.solve();
    for (std::size_t i = 0; i < kept.size(); ++i) at(us, kept[i]) = solution[i];
  }
  return us;
}

// Gram and Schmidt in the order of the terms: what is left of one when those before it have taken
// their part.
struct ToldApart {
  std::vector<RowTerm> kept;
  std::vector<std::pair<RowTerm, RowTerm>> not_told_apart;
};
ToldApart tell_apart(const std::vector<const RowEquation*>& rows) {
  ToldApart fit;
  std::vector<std::vector<double>> kept;
  for (std::size_t i = 0; i < kRowTerms.size(); ++i) {
    std::vector<double> column;
    for (const RowEquation* row : rows) column.push_back(row->terms[i] / row->itl_s);
    const auto norm = [](const std::vector<double>& v) {
      double sum = 0;
      for (const double x : v) sum += x * x;
      return std::sqrt(sum);
    };
    const double whole = norm(column);
    if (whole == 0) continue;
    std::size_t nearest = 0;
    double most = -1;
    for (std::size_t k = 0; k < kept.size(); ++k) {
      double dot = 0;
      for (std::size_t r = 0; r < column.size(); ++r) dot += column[r] * kept[k][r];
      // What happens once a step goes with everything: named only where there is nothing else.
      if (std::abs(dot) > most && (fit.kept[k] != RowTerm::kStep || kept.size() == 1)) {
        most = std::abs(dot);
        nearest = k;
      }
      for (std::size_t r = 0; r < column.size(); ++r) column[r] -= dot * kept[k][r];
    }
    const double own = norm(column);
    const auto term = static_cast<RowTerm>(i);
    if (own < kOwnShare * whole) {
      fit.not_told_apart.emplace_back(term, fit.kept[nearest]);
      continue;
    }
    for (double& x : column) x /= own;
    kept.push_back(std::move(column));
    fit.kept.push_back(term);
  }
  return fit;
}

// Per waiting request, us; its rest is part of a step's.
double fit_scheduling(const std::vector<SchedulingRow>& rows, RowFit* fit) {
  LeastSquares problem(3);
  for (const SchedulingRow& row : rows) {
    problem.add({1, row.requests, row.waiting}, row.seconds * kUsPerSecond,
                1 / (row.seconds * kUsPerSecond));
  }
  const std::vector<double> us = problem.solve();
  for (const SchedulingRow& row : rows) {
    const double fitted = us[0] + us[1] * row.requests + us[2] * row.waiting;
    fit->scheduling_error +=
        symmetric_error(fitted, row.seconds * kUsPerSecond) / static_cast<double>(rows.size());
  }
  fit->scheduling_rows = rows.size();
  return us[2];
}

// A term whose cost is known leaves the rows.
void take_out(RowTerm term, double us, std::vector<RowEquation>* rows) {
  for (RowEquation& row : *rows) {
    row.itl_s -= us * at(row.terms, term) / kUsPerSecond;
    at(row.terms, term) = at(row.growth, term) = 0;
    if (row.itl_s > 0) continue;
    throw SpecError(fmt::format("line {}: its ITL is shorter than {:g} us per {} alone", row.line,
                                us, kRowTerms[static_cast<std::size_t>(term)]));
  }
}

}  // namespace

std::vector<std::string> keys_of(const MeasuredRows& rows) {
  std::vector<std::string> keys;
  for (const MeasuredRow& row : rows.rows) {
    for (const auto& [key, value] : row.settings) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  return keys;
}

std::vector<RowEquation> equations(const Spec& spec, const MeasuredRows& rows,
                                   const std::string& data_dir) {
  const std::vector<std::string> keys = keys_of(rows);
  std::vector<RowEquation> all;
  for (const MeasuredRow& row : rows.rows) {
    if (!(row.measured.itl_s > 0)) continue;
    const auto fail = [&](const std::string& what) {
      throw SpecError(fmt::format("{}:{}: {}", rows.path, row.line, what));
    };
    const SweepPosition position = position_of(spec, row);
    const PointSettings settings =
        resolve_point(spec, position, spec.techniques.front(), spec.seeds.front());
    RowEquation equation;
    equation.line = row.line;
    equation.itl_s = row.measured.itl_s;
    const Demand demand = demand_of(settings, data_dir);
    if (row.step) {
      equation.is_step = true;
      equation.terms = terms_of(demand, row.step->decodes, row.step->prefill_tokens,
                                row.step->adapters, row.step->waiting, row.step->context);
    } else {
      if (!(row.measured.tokens_per_s > 0)) {
        fail(
            "a run's latency says nothing without measured.tokens_per_s; for a single step give "
            "step.decodes");
      }
      const double requests_per_s = row.measured.tokens_per_s / (demand.prompt + demand.output);
      const auto terms = [&](double itl_s) { return terms_of_run(demand, requests_per_s, itl_s); };
      equation.terms = terms(equation.itl_s);
      equation.growth = terms((1 + kBump) * equation.itl_s);
      for (std::size_t i = 0; i < equation.terms.size(); ++i) {
        equation.growth[i] -= equation.terms[i];
      }
      equation.feeds_back = requests_per_s >= kFreeShare * demand.offered;
    }
    for (const std::string& key : keys) {
      std::string value;
      for (const auto& [own, node] : row.settings) {
        if (own == key) value = canonical_json(node);
      }
      equation.settings.push_back(value);
    }
    all.push_back(std::move(equation));
  }
  return all;
}

RowFit fit_rows(std::vector<RowEquation> equations, const std::vector<SchedulingRow>& scheduling,
                const std::vector<std::string>& keys, const TermValues* elsewhere) {
  RowFit fit;
  TermValues known{};
  if (!scheduling.empty()) {
    at(known, RowTerm::kWaiting) = fit_scheduling(scheduling, &fit);
    take_out(RowTerm::kWaiting, at(known, RowTerm::kWaiting), &equations);
  }
  std::vector<const RowEquation*> all;
  for (const RowEquation& row : equations) all.push_back(&row);
  fit.rows = all.size();
  const ToldApart told = tell_apart(all);
  fit.kept = told.kept;
  for (const auto& [term, beside] : told.not_told_apart) {
    if (elsewhere && at(*elsewhere, term) > 0) {
      at(known, term) = at(*elsewhere, term);
      take_out(term, at(known, term), &equations);
      fit.taken_over.push_back(term);
    } else {
      fit.not_told_apart.emplace_back(term, beside);
    }
  }
  if (all.size() < fit.kept.size() + 2) {
    throw SpecError(fmt::format(
        "{} rows with a latency are too few for {} terms; measure at least {}, with batches, "
        "adapters, slots and ranks that vary",
        all.size(), fit.kept.size(), fit.kept.size() + 2));
  }
  if (std::find(fit.kept.begin(), fit.kept.end(), RowTerm::kToken) == fit.kept.end()) {
    throw SpecError("all rows have the same batch; measure the latency at other rates");
  }
  fit.us = solve(all, fit.kept);
  fit.error = symmetric_errors(all, fit.us);
  std::vector<const RowEquation*> steps, runs;
  for (const RowEquation* row : all) (row->is_step ? steps : runs).push_back(row);
  fit.steps = steps.size();
  fit.step_error = symmetric_errors(steps, fit.us);
  fit.run_error = symmetric_errors(runs, fit.us);
  for (const RowEquation* row : all) {
    double whole = 0;
    for (std::size_t i = 0; i < fit.us.size(); ++i) whole += fit.us[i] * row->terms[i];
    for (std::size_t i = 0; i < fit.us.size() && whole > 0; ++i) {
      fit.shares[i] += fit.us[i] * row->terms[i] / whole / static_cast<double>(all.size());
    }
  }
  for (std::size_t i = 0; i < known.size(); ++i) fit.us[i] += known[i];
  // The mean error of groups of rows, each by a fit to all the others.
  const auto error_left_out = [&](const auto& groups, const auto& group_of, const auto& keep) {
    double sum = 0;
    for (const auto& group : groups) {
      std::vector<const RowEquation*> used, judged;
      for (std::size_t i = 0; i < all.size(); ++i) {
        (group_of(i) == group ? judged : used).push_back(all[i]);
      }
      if (judged.empty()) continue;
      const TermValues us = solve(used, tell_apart(used).kept);
      keep(group, us);
      sum += symmetric_errors(judged, us) * static_cast<double>(judged.size());
    }
    return sum / static_cast<double>(all.size());
  };
  fit.fold_error = error_left_out(
      std::set<std::size_t>{0, 1, 2, 3, 4}, [&](std::size_t i) { return i % fit.folds.size(); },
      [&](std::size_t fold, const TermValues& us) {
        fit.folds[fold] = us;
        for (std::size_t i = 0; i < known.size(); ++i) fit.folds[fold][i] += known[i];
      });
  for (std::size_t key = 0; key < keys.size(); ++key) {
    std::set<std::string> values;
    for (const RowEquation* row : all) values.insert(row->settings[key]);
    if (values.size() < 2 || values.size() > kMostLeftOut) continue;
    fit.left_out.push_back(
        {keys[key],
         error_left_out(
             values, [&](std::size_t i) { return all[i]->settings[key]; }, [](const auto&...) {})});
  }
  return fit;
}

void put_constants(const RowFit& fit, FittedConstants* constants) {
  const double step = at(fit.us, RowTerm::kStep);
  const double token = at(fit.us, RowTerm::kToken);
  constants->token_knots = {1, 2};
  constants->dense_us = {step + token, step + 2 * token};
  constants->sample_knots = {1};
  constants->logits_us = {1e-3};  // part of the step; a table has no zeros
  constants->prefill_token_us = at(fit.us, RowTerm::kPromptToken);
  constants->decode_key_ns = at(fit.us, RowTerm::kContext) * 1e3;
  // A server has one kernel, whatever a technique calls it.
  for (FittedLora& lora : constants->lora) {
    lora = {};
    lora.row_us = at(fit.us, RowTerm::kLoraToken);
    lora.adapter_us = at(fit.us, RowTerm::kAdapter);
    lora.adapter_rank_us = at(fit.us, RowTerm::kAdapterRank);
  }
  constants->lora_prefill_token_us = at(fit.us, RowTerm::kLoraToken);
  constants->lora_pair_us = at(fit.us, RowTerm::kPair);
  constants->lora_slot_us = at(fit.us, RowTerm::kSlot);
  constants->k2_us = at(fit.us, RowTerm::kWaiting);
  if (!std::isnan(fit.load_s)) {
    constants->load_latency_us = fit.load_s * kUsPerSecond;
    constants->load_bytes_per_s = 1e15;  // the size is part of it
  }
}

TermValues terms_in(const FittedConstants& constants) {
  TermValues us{};
  const FittedLora& lora = constants.of(kernels::LoraKind::kSgmv);
  at(us, RowTerm::kAdapter) = lora.adapter_us;
  at(us, RowTerm::kAdapterRank) = lora.adapter_rank_us;
  at(us, RowTerm::kPair) = constants.lora_pair_us;
  at(us, RowTerm::kSlot) = constants.lora_slot_us;
  at(us, RowTerm::kWaiting) = constants.k2_us;
  at(us, RowTerm::kContext) = constants.decode_key_ns / 1e3;
  at(us, RowTerm::kLoraToken) = lora.row_us;
  at(us, RowTerm::kPromptToken) = constants.prefill_token_us;
  return us;
}

}  // namespace servelab
