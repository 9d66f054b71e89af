#include "screen/failure.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>

#include "numeric/apply.h"
#include "tap/operator_tap.h"

namespace faultline::screen {
namespace {

constexpr std::array kSuspectNames = {"compute", "memory", "transfer", "host", "unknown"};
constexpr int64_t kTries = 8, kTile = 128, kLanes = 32;

uint64_t bits_at(const at::Tensor& bits, int64_t element, int width) {
  const auto value = static_cast<uint64_t>(bits.view(-1)[element].item<int64_t>());
  return width == 64 ? value : value & ((uint64_t{1} << width) - 1);
}

// Which elements differ, and how.
void compare(const at::Tensor& observed, const at::Tensor& wanted, Failure& failure) {
  const at::Tensor a = bits_of(observed), b = bits_of(wanted);
  failure.width = static_cast<int>(8 * observed.element_size());
  const at::Tensor wrong = a.ne(b).view(-1).nonzero().view(-1);
  failure.wrong_elements = wrong.numel();
  if (failure.wrong_elements == 0) return;
  failure.element = wrong[0].item<int64_t>();
  failure.expected = bits_at(b, failure.element, failure.width);
  failure.observed = bits_at(a, failure.element, failure.width);
  const at::Tensor masks = a.view(-1).index_select(0, wrong).bitwise_xor(b.view(-1).index_select(0, wrong));
  const int64_t looked_at = std::min<int64_t>(masks.numel(), 4096);
  for (int64_t i = 0; i < looked_at; ++i) failure.changed_bits |= bits_at(masks, i, failure.width);
  failure.lane = failure.element % kLanes;
  if (observed.dim() < 2) return;
  const int64_t columns = observed.size(-1), rows = observed.size(-2);
  failure.column = failure.element % columns;
  failure.row = failure.element / columns % rows;
  failure.matrix = failure.element / (columns * rows);
  failure.tile_row = failure.row / kTile, failure.tile_column = failure.column / kTile;
}

std::string first_wrong_stage(const Check& check, const at::Tensor& wanted) {
  for (const Stage& stage : check.stages())
    if (!bits_of(stage.tensor.cpu()).equal(bits_of(wanted))) return stage.name;
  return {};
}

std::string times_text(const Tries& tries) {
  return fmt::format("{} of {}{}", tries.wrong, tries.tries,
                     tries.wrong == 0            ? ""
                     : tries.same == tries.wrong ? ", with the same bytes"
                     : tries.same == 0           ? ", with other bytes"
                                                 : ", not always with the same bytes");
}

Failure failure_of(const Check& check) {
  Failure failure;
  failure.check = check.name, failure.operation = check.operation, failure.group = check.group;
  failure.dtype = check.dtype, failure.shape = check.shape, failure.pattern = check.pattern;
  return failure;
}

void suspect(const Check& check, Failure& failure) {
  const bool again = failure.again.wrong > 0, there = failure.elsewhere.wrong > 0;
  const auto say = [&](Suspect what, const char* certainty, std::string why) {
    failure.suspect = what, failure.certainty = certainty, failure.sentence = std::move(why);
  };
  if (!failure.broken_inputs.empty())
    return say(Suspect::kMemory, "sure",
               fmt::format("the {} in memory is no longer what was written there", failure.broken_inputs[0]));
  if (check.group == Group::kMemory)
    return say(Suspect::kMemory, again ? "sure" : "likely",
               again ? "what was written is wrong at every look" : "what was written was wrong once");
  if (failure.wrong_elements == 0)
    return say(Suspect::kUnknown, "open",
               "the result's digest was wrong, its bytes were right when they were read again: reading them failed, or "
               "the digest's computation");
  if (check.group == Group::kCopy)
    return say(Suspect::kTransfer, again ? "sure" : "likely",
               fmt::format("{} brought other bytes than it was given", failure.stage));
  if (again && failure.again.same == failure.again.wrong)
    return say(Suspect::kCompute, "sure",
               there ? "the inputs are right, and the same wrong bytes come again, elsewhere too"
                     : "the inputs are right, and the same wrong bytes come again");
  if (again) return say(Suspect::kCompute, "sure", "the inputs are right, and the result is wrong again and again");
  say(Suspect::kCompute, "likely", "the inputs are right; the same call gave the right result afterwards");
}

}  // namespace

at::Tensor bits_of(const at::Tensor& contiguous) {
  switch (contiguous.element_size()) {
    case 1: return contiguous.view(at::kByte);
    case 2: return contiguous.view(at::kShort);
    case 4: return contiguous.view(at::kInt);
    default: return contiguous.view(at::kLong);
  }
}

int64_t one_bit(int64_t element_size, int bit) {
  switch (element_size) {
    case 1: return int64_t{1} << bit;
    case 2: return static_cast<int16_t>(uint16_t{1} << bit);
    default: return static_cast<int32_t>(uint32_t{1} << bit);
  }
}

const char* suspect_name(Suspect suspect) { return kSuspectNames[static_cast<std::size_t>(suspect)]; }

int64_t digest_now(const at::Tensor& result) { return numeric::digest(result).cpu().item<int64_t>(); }

Tries try_again(Check& check, const Launched& wrong, int64_t times) {
  Tries tries;
  for (; tries.tries < times; ++tries.tries) {
    if (check.memory) check.memory->next = wrong.chunk;
    check.turn = wrong.turn ^ 1;  // a chain takes the other source at every run
    const at::Tensor result = check.run({});
    const int64_t digest = digest_now(result);
    if (digest == check.digests[static_cast<std::size_t>(wrong.turn) % check.digests.size()]) continue;
    ++tries.wrong;
    if (digest == wrong.digest) ++tries.same;
  }
  return tries;
}

Failure changed_input(const Check& check, const Input& input) {
  Failure failure = failure_of(check);
  failure.broken_inputs = {input.name};
  suspect(check, failure);
  return failure;
}

Failure examine(Check& check, const Launched& wrong, const Elsewhere& elsewhere) {
  Failure failure = failure_of(check);
  bool host_differs = false;
  {
    const tap::TapsSuspended ours;  // a fault planted in operators is not to meet the host's own arithmetic
    const at::Tensor wanted = check.memory ? check.memory->wanted(wrong.chunk) : check.answer(wrong.turn);
    host_differs = !check.memory &&
                   host_digest(wanted) != check.digests[static_cast<std::size_t>(wrong.turn) % check.digests.size()];
    const at::Tensor observed =
        (check.memory ? check.memory->chunks[static_cast<std::size_t>(wrong.chunk)].words : wrong.result).cpu();
    compare(observed, wanted, failure);
    if (check.memory) failure.stage = fmt::format("chunk {}", wrong.chunk);
    if (check.stages) failure.stage = first_wrong_stage(check, wanted);
    for (const Input& input : check.inputs)
      if (digest_now(input.tensor) != input.digest) failure.broken_inputs.push_back(input.name);
  }
  failure.again = try_again(check, wrong, kTries);
  if (check.elsewhere) {
    failure.elsewhere_is = "the same tiles at other places of the grid";
    for (; failure.elsewhere.tries < kTries; ++failure.elsewhere.tries) {
      const int64_t digest = digest_now(check.elsewhere());
      failure.elsewhere.wrong += digest != check.digests[0] ? 1 : 0;
      failure.elsewhere.same += digest == wrong.digest ? 1 : 0;
    }
  } else if (elsewhere) {
    if (const auto tries = elsewhere(check, wrong, failure.elsewhere_is)) failure.elsewhere = *tries;
  }
  if (host_differs) {
    failure.suspect = Suspect::kHost, failure.certainty = "sure";
    failure.sentence = "the host computed the right answer twice and got two answers: it is the host that is wrong";
    return failure;
  }
  suspect(check, failure);
  return failure;
}

Json to_json(const Failure& failure) {
  const auto tries = [](const Tries& one) {
    return Json{{"tries", one.tries}, {"wrong", one.wrong}, {"same_bytes", one.same}, {"text", times_text(one)}};
  };
  Json json = {{"check", failure.check},
               {"operation", failure.operation},
               {"group", group_name(failure.group)},
               {"dtype", failure.dtype},
               {"shape", failure.shape},
               {"pattern", failure.pattern},
               {"when", failure.when},
               {"launch", failure.launch},
               {"wrong_elements", failure.wrong_elements},
               {"element", failure.element},
               {"lane", failure.lane},
               {"again", tries(failure.again)},
               {"broken_inputs", failure.broken_inputs},
               {"suspect", suspect_name(failure.suspect)},
               {"certainty", failure.certainty},
               {"sentence", failure.sentence}};
  if (failure.row >= 0) {
    json["matrix"] = failure.matrix, json["row"] = failure.row, json["column"] = failure.column;
    json["tile"] = {failure.tile_row, failure.tile_column};
  }
  if (failure.wrong_elements > 0) {
    const int digits = failure.width / 4;
    json["expected_bits"] = fmt::format("{:0{}x}", failure.expected, digits);
    json["observed_bits"] = fmt::format("{:0{}x}", failure.observed, digits);
    json["changed_bits"] = fmt::format("{:0{}x}", failure.changed_bits, digits);
  }
  if (!failure.stage.empty()) json["stage"] = failure.stage;
  if (!failure.elsewhere_is.empty())
    json["elsewhere"] = tries(failure.elsewhere), json["elsewhere"]["where"] = failure.elsewhere_is;
  else
    json["elsewhere"] = nullptr;
  if (failure.core) json["core"] = *failure.core;
  return json;
}

}  // namespace faultline::screen
