// The driver: control and lifetime as device scalars, what a kind measures itself by, then chunk after chunk through
// kind or format, with its evidence. Nothing here waits for the device.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "numeric/apply_device.h"
#include "numeric/arithmetic.h"
#include "numeric/portable/evidence.h"
#include "numeric/portable/faults.h"
#include "numeric/portable/portable.h"
#include "numeric/portable/proof.h"
#include "numeric/portable/quantize.h"
#include "numeric/portable/statistics.h"

namespace faultline::numeric::portable {
namespace {

// On a CPU a chunk stays in the caches. Elsewhere the host hands out operators, each of which should have enough to do:
// the whole tensor at once up to 8,388,608 elements, as long as what a chunk needs on the way (less than 160 bytes an
// element) is an eighth of the device's memory at most, where it says how much it has.
int64_t tiles_at_once(const at::Device& device) {
  if (device.is_cpu()) return 32;
  constexpr int64_t kMost = 4096, kLeast = 256, kBytesOfTile = 160 * kTile;
  static std::mutex mutex;
  static std::map<std::string, int64_t> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [place, is_new] = known.try_emplace(device.str(), kMost);
  if (is_new) {
    try {
      auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
      if (allocator == nullptr) return kMost;
      const auto memory = allocator->getMemoryInfo(std::max<c10::DeviceIndex>(0, device.index()));
      place->second = std::clamp(static_cast<int64_t>(memory.second) / 8 / kBytesOfTile, kLeast, kMost);
    } catch (const c10::Error&) {  // its allocator does not know
    }
  }
  return place->second;
}

DeviceControl device_control(const Control& control, const at::Device& device) {
  return {{},
          scalar(control.strength, at::kFloat, device),
          word_scalar(control.step, device),
          word_scalar(control.call, device),
          word_scalar(control.phase, device),
          word_scalar(control.row_base, device)};
}

// Note [Control]'s row, read on the device. 32-bit words: armed, strength, step, call, phase, -, row base, progress.
DeviceControl device_control(const at::Tensor& row) {
  const at::Tensor flat = row.view({-1}), words = flat.to(at::kLong) & 0xFFFFFFFFll;
  const auto word = [&](int64_t index) { return words.select(0, index); };
  const auto pair = [&](int64_t index) { return word(index) | word(index + 1).bitwise_left_shift(32); };
  const at::Tensor calls = shift_right(pair(8), 12);  // progress / kProgressPerCall
  static_assert(kProgressPerCall == uint64_t{1} << 12);
  return {word(0).ne(0), flat.narrow(0, 1, 1).view(at::kFloat).select(0, 0).clone(),
          word(2),       (word(3) + calls) & 0xFFFFFFFFll,
          word(4),       pair(6)};
}

void advance(const at::Tensor& row, const at::Tensor& armed) {
  const at::Tensor flat = row.view({-1}), words = flat.to(at::kLong) & 0xFFFFFFFFll;
  const at::Tensor progress = (words.select(0, 8) | words.select(0, 9).bitwise_left_shift(32)) +
                              armed.to(at::kLong) * static_cast<int64_t>(kProgressPerCall);
  flat.select(0, 8).copy_(progress & 0xFFFFFFFFll);
  flat.select(0, 9).copy_(progress.bitwise_right_shift(32));
}

// lifetime_acts on the device: a bool scalar.
at::Tensor lifetime_acts(const LifetimeArguments& lifetime, uint64_t noise_key, const DeviceControl& control) {
  if (lifetime.kind == Lifetime::kWindow)
    return control.step.ge(static_cast<int64_t>(lifetime.from)) & control.step.lt(static_cast<int64_t>(lifetime.to));
  const at::Device device = control.step.device();
  if (lifetime.kind == Lifetime::kPermanent) return at::ones_like(control.step, at::kBool);
  Pool pool(device);
  const at::Tensor word =
      element_words(control, round_keys(noise_key, device), word_scalar(0, device), kCallStream, pool).word(0);
  return unit_float(word) < static_cast<double>(lifetime.probability);
}

// Whether a call acts, as the device knows it.
struct Gate {
  at::Tensor armed, acts;  // int64 scalars, 0 or 1
  at::Tensor mask;         // int32 scalar of all ones where it acts; undefined: certain
};

struct Pass {
  Traversal traversal;
  bool counted;
};

// Some tiles of one wave, or whole waves.
struct Chunk {
  int64_t first, count;  // elements
  int64_t segment, per_wave;
  bool starts;  // of the first wave
};

template <class Function>
void over_chunks(const Pass& pass, int64_t elements, const at::Device& device, const Function& function) {
  const int64_t segments = pass.counted ? pass.traversal.segments : pass.traversal.tiles, most = tiles_at_once(device);
  const auto call = [&](int64_t tile, int64_t tiles, int64_t segment, int64_t per_wave) {
    const int64_t first = tile * kTile;
    function(Chunk{first, std::min(tiles * kTile, elements - first), segment, per_wave, tile == segment});
  };
  if (segments <= most) {
    const int64_t at_once = most / segments * segments;
    for (int64_t tile = 0; tile < pass.traversal.tiles; tile += at_once) call(tile, at_once, 0, segments);
    return;
  }
  const int64_t parts = (segments + most - 1) / most, at_once = (segments + parts - 1) / parts;
  for (int64_t segment = 0; segment < segments; segment += at_once) {
    const int64_t tiles = std::min(at_once, segments - segment);
    for (int64_t tile = segment; tile < pass.traversal.tiles; tile += segments) call(tile, tiles, segment, tiles);
  }
}

at::Tensor filled(const at::Tensor& flat) {  // to whole tiles
  const int64_t left = (kTile - flat.numel() % kTile) % kTile;
  return left == 0 ? flat : at::constant_pad_nd(flat, {0, left});
}

at::Tensor group_elements(const at::Tensor& groups) {  // (groups) -> (groups, 256)
  constexpr int64_t kGroup = 32 * kChunk;
  return groups.unsqueeze(1) * kGroup + at::arange(kGroup, groups.options());
}

at::Tensor wide(const at::Tensor& bits, Dtype dtype) { return bits.view(value_type(dtype)).to(at::kFloat); }

void run(const at::Tensor& x, const Rule& rule, FaultArguments& a, const CallTensors& tensors,
         const DeviceControl& control, const Gate& gate) {
  const at::Tensor flat = x.view({-1});
  at::Tensor reference;
  if (a.reference_kind != Reference::kNone && a.elements > 0) {
    if (tensors.reference != nullptr) reference = *tensors.reference;
    if (!reference.defined())
      reference = portable::reference({a.dtype, a.reference_kind, a.elements, a.columns}, a.axis, x);
    if (tensors.reference != nullptr) *tensors.reference = reference;
  }
  at::Tensor source = is_replacement(a.kind) ? *tensors.replacement : at::Tensor();
  if (a.elements > 0 && (a.kind == FaultKind::kSwap || (a.kind == FaultKind::kBitflip && a.count > 0)))
    source = rearranged(a, control, flat);
  const FaultCall call(a, control, flat, reference, source, tensors.row_keys.value_or(at::Tensor()),
                       rule.what.profile.get());
  const Pass pass{traversal_of(a, true), tensors.ledger.has_value()};
  Pool pool(x.device());
  if (!pass.counted) {
    over_chunks(pass, a.elements, x.device(), [&](const Chunk& part) {
      const FaultChunk chunk = call.chunk(part.first, part.count, gate.mask, pool);
      chunk.before.copy_(chunk.after);
    });
    return;
  }
  Evidence evidence(pass.traversal, a.dtype, x.device());
  const at::Tensor places = group_elements(evidence.sampled_groups());
  const at::Tensor exists = places.lt(a.elements);
  const auto sample = [&] {
    if (a.elements == 0) return at::Tensor();
    const at::Tensor values = flat.index_select(0, places.clamp_max(a.elements - 1).view({-1})).to(at::kFloat);
    return at::where(exists, values.view(places.sizes()), scalar(0, at::kFloat, x.device()));
  };
  const at::Tensor before = sample();
  over_chunks(pass, a.elements, x.device(), [&](const Chunk& part) {
    const FaultChunk chunk = call.chunk(part.first, part.count, gate.mask, pool);
    at::Tensor y = chunk.after.view(value_type(a.dtype));
    if (a.dtype != Dtype::kFloat32) {
      at::Tensor buffer = pool.take(at::kFloat, part.count);
      y = buffer.copy_(y);
    }
    evidence.add({filled(chunk.x),
                  filled(y),
                  filled(chunk.before.ne(chunk.after)),
                  chunk.selected.defined() ? filled(chunk.selected) : at::Tensor(),
                  {},
                  part.count},
                 part.segment, part.per_wave, part.starts, pool);
    chunk.before.copy_(chunk.after);
  });
  if (a.elements > 0) evidence.add_sample(before, sample(), call.selected(places));
  evidence.finish(*tensors.ledger, a.elements, gate.armed, gate.acts);
}

void run(const at::Tensor& x, const Rule&, QuantizeArguments& q, const CallTensors& tensors,
         const DeviceControl& control, const Gate& gate) {
  const at::Tensor matrix = x.view({q.rows, q.columns});
  const QuantizeCall call(q, control, matrix);
  const Pass pass{traversal_of(q, true), tensors.ledger.has_value()};
  const int64_t elements = call.padded_elements();
  Pool pool(x.device());
  if (!pass.counted) {
    over_chunks(pass, elements, x.device(), [&](const Chunk& part) {
      call.write(part.first, call.chunk(part.first, part.count, gate.mask, pool).after);
    });
    return;
  }
  Evidence evidence(pass.traversal, q.dtype, x.device());
  const at::Tensor struck = tensors.ledger->view({-1}).select(0, kWordStruck);
  if (call.struck_units().defined()) struck.add_(call.struck_units() * gate.acts);
  const at::Tensor places = group_elements(evidence.sampled_groups());
  const auto sample = [&] {
    return elements == 0 ? at::Tensor() : wide(call.gathered(places.view({-1})), q.dtype).view(places.sizes());
  };
  const at::Tensor before = sample();
  over_chunks(pass, elements, x.device(), [&](const Chunk& part) {
    const QuantizeChunk chunk = call.chunk(part.first, part.count, gate.mask, pool);
    evidence.add({filled(chunk.x), filled(wide(chunk.after, q.dtype)), filled(chunk.before.ne(chunk.after)),
                  filled(chunk.selected), filled(chunk.saturated), part.count},
                 part.segment, part.per_wave, part.starts, pool);
    if (chunk.struck.defined()) struck.add_(chunk.struck * gate.acts);
    call.write(part.first, chunk.after);
  });
  if (elements > 0) evidence.add_sample(before, sample(), call.selected(places));
  evidence.finish(*tensors.ledger, x.numel(), gate.armed, gate.acts);
}

Gate gate_of(const LifetimeArguments& lifetime, uint64_t noise_key, const DeviceControl& control) {
  const at::Tensor acts = lifetime_acts(lifetime, noise_key, control) & control.armed;
  return {control.armed.to(at::kLong), acts.to(at::kLong), acts.to(at::kInt).neg()};
}

}  // namespace

bool has_own_kernels(const at::Device& device) { return device.is_cpu() || (device.is_cuda() && has_cuda_kernels()); }

bool serves(const at::Device& device) {
  static const bool forced = [] {
    const char* wish = std::getenv("FAULTLINE_ARITHMETIC");
    if (wish == nullptr || std::string_view(wish) == "native") return false;
    if (std::string_view(wish) == "portable") return true;
    throw UsageError(fmt::format("FAULTLINE_ARITHMETIC={}: wanted native or portable", wish));
  }();
  return forced || !has_own_kernels(device);
}

template <class Arguments>
void apply_unproven(const at::Tensor& x, const Rule& rule, Arguments arguments, const CallTensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const c10::OptionalDeviceGuard guard(x.is_cpu() ? std::nullopt : std::optional(x.device()));
  if (tensors.control) {
    const DeviceControl control = device_control(*tensors.control);
    run(x, rule, arguments, tensors, control, gate_of(arguments.lifetime, arguments.noise_key, control));
    advance(*tensors.control, control.armed);
    return;
  }
  if (!arguments.control.armed) return;  // the host knows all about this call
  const bool acts = numeric::lifetime_acts(arguments.lifetime, arguments.noise_key, arguments.control);
  const at::Tensor one = word_scalar(1, x.device());
  if (acts) {
    run(x, rule, arguments, tensors, device_control(arguments.control, x.device()), {one, one, {}});
  } else if (tensors.ledger) {
    tensors.ledger->view({-1}).select(0, kWordCalls).add_(one);
  }
}

template <class Arguments>
void apply(const at::Tensor& x, const Rule& rule, Arguments arguments, const CallTensors& tensors) {
  if (arguments.dtype == Dtype::kFloat64)
    throw UsageError("the portable arithmetic has no fp64; on a CPU leave FAULTLINE_ARITHMETIC out");
  require_proof(x.device(), rule);
  apply_unproven(x, rule, arguments, tensors);
}

template void apply(const at::Tensor&, const Rule&, FaultArguments, const CallTensors&);
template void apply(const at::Tensor&, const Rule&, QuantizeArguments, const CallTensors&);
template void apply_unproven(const at::Tensor&, const Rule&, FaultArguments, const CallTensors&);
template void apply_unproven(const at::Tensor&, const Rule&, QuantizeArguments, const CallTensors&);

}  // namespace faultline::numeric::portable
