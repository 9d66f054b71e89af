// The grid of planted faults: what, how much of it, where.
#include <fmt/format.h>

#include "base/error.h"
#include "diagnose/campaign/campaign.h"

namespace faultline::diagnose {
namespace {

std::vector<FaultGrid::Entry> ladder(const std::string& kind, const std::string& what,
                                     const std::vector<double>& strengths) {
  std::vector<FaultGrid::Entry> entries;
  for (const double strength : strengths)
    entries.push_back({fmt::format("{} {:g}", kind, strength), kind,
                       what.find("{spread}") != std::string::npos ? what : fmt::format("{}{:g}", what, strength),
                       strength});
  return entries;
}

}  // namespace

FaultGrid full_grid() {
  FaultGrid grid;
  grid.entries = {{"dead zone .03", "deadzone", "deadzone(threshold=0.03", 0.03},
                  {"dead zone .05", "deadzone", "deadzone(threshold=0.05", 0.05},
                  {"saturation 10%", "saturate", "saturate(margin=0.1", 0.1},
                  {"saturation 30%", "saturate", "saturate(margin=0.3", 0.3},
                  {"offset .01", "offset", "offset(strength=0.01", 0.01},
                  {"offset .1", "offset", "offset(strength=0.1", 0.1},
                  {"gain 1%", "gain", "gain(strength=0.01", 0.01},
                  {"gain 5%", "gain", "gain(strength=0.05", 0.05},
                  {"bias .01", "systematic_bias", "systematic_bias(strength={spread}", 0.01},
                  {"noise 1%", "noise", "relative_gaussian(strength=0.01", 0.01},
                  {"noise 5%", "noise", "relative_gaussian(strength=0.05", 0.05},
                  {"spike", "spike", "spike(probability=0.003", 0.003},
                  {"stuck mantissa bit", "stuck_at", "stuck_at(bit=3, value=1", 3},
                  {"stuck exponent bit", "stuck_at", "stuck_at(bit=8, value=1", 8},
                  {"mxfp4", "quantize", "quantize(format=mxfp4", 4}};
  grid.extents = {1, 0.1, 0.01};
  grid.sites = {
      {"layer output", "layer output", "module=layer_output", ""},
      {"q_proj", "linear", "module=q_proj,surface=output", "self_attn.q_proj"},
      {"k_proj", "linear", "module=k_proj,surface=output", "self_attn.k_proj"},
      {"v_proj", "linear", "module=v_proj,surface=output", "self_attn.v_proj"},
      {"o_proj", "linear", "module=o_proj,surface=output", "self_attn.o_proj"},
      {"gate_proj", "linear", "module=gate_proj,surface=output", "mlp.gate_proj"},
      {"up_proj", "linear", "module=up_proj,surface=output", "mlp.up_proj"},
      {"down_proj", "linear", "module=down_proj,surface=output", "mlp.down_proj"},
      {"input norm", "norm", "module='*input_layernorm',surface=output", "input_layernorm"},
      {"second norm", "norm", "module='*post_attention_layernorm',surface=output", "post_attention_layernorm"},
      {"attention", "attention", "operator=attention", "self_attn"},
      {"activation", "activation", "module=act_fn,surface=output", "mlp.act_fn"}};
  const std::string rare = ", lifetime.kind=transient, lifetime.probability=0.1";
  grid.rare = {{"rare gain 5%", "gain", "gain(strength=0.05" + rare, 0.05},
               {"rare dead zone .05", "deadzone", "deadzone(threshold=0.05" + rare, 0.05},
               {"rare offset .1", "offset", "offset(strength=0.1" + rare, 0.1}};
  const auto add = [&](const std::vector<FaultGrid::Entry>& entries) {
    grid.fading.insert(grid.fading.end(), entries.begin(), entries.end());
  };
  add(ladder("deadzone", "deadzone(threshold=", {0.0003, 0.001, 0.003, 0.01, 0.03, 0.1}));
  add(ladder("saturate", "saturate(margin=", {0.003, 0.01, 0.03, 0.1, 0.3}));
  add(ladder("offset", "offset(strength=", {0.0003, 0.001, 0.003, 0.01, 0.03, 0.1}));
  add(ladder("gain", "gain(strength=", {0.002, 0.003, 0.01, 0.03, 0.1}));
  add(ladder("systematic_bias", "systematic_bias(strength={spread}", {0.0003, 0.001, 0.003, 0.01, 0.03}));
  add(ladder("noise", "relative_gaussian(strength=", {0.001, 0.003, 0.01, 0.03, 0.1}));
  return grid;
}

FaultGrid edges_grid() {
  FaultGrid grid;
  grid.extents = {1};
  struct Type {
    const char* name;
    int mantissa, width;
  };
  for (const Type& type : {Type{"bf16", 7, 16}, Type{"fp16", 10, 16}, Type{"fp32", 23, 32}}) {
    const auto add = [&](const std::string& kind, const std::string& name, const std::string& what, int64_t passes) {
      grid.entries.push_back({fmt::format("{} {}", type.name, name), kind, what, 0, type.name, passes});
    };
    const std::string channels = ", extent.fraction=0.1, extent.structure=channel";
    const std::string rarely = ", lifetime.kind=transient, lifetime.probability=0.1";
    for (int bit = type.mantissa - 2; bit < type.width; ++bit) {
      const std::string kind = bit < type.mantissa ? "mantissa" : bit + 1 < type.width ? kExponentFlips : "sign";
      const auto flip = [&](const char* how, const std::string& rest, int64_t passes) {
        add(kind, fmt::format("bit {} {}", bit, how), fmt::format("bitflip(bit={}, {}", bit, rest), passes);
      };
      flip("everywhere", "rate=1", 1);
      flip("in some channels", "rate=1" + channels, 1);
      flip("in one element a call", "count=1", kPassesForRare);
      flip("in one of a thousand elements", "rate=0.001", kPassesForRare);
      flip("in one element, one call of ten", "count=1" + rarely, kPassesForRare);
    }
    for (const std::string kind : {"inf", "nan"}) {
      add(kind, kind + " everywhere", kind + "(extent.fraction=1", 1);
      add(kind, kind + " in some channels", kind + "(" + channels.substr(2), 1);
      add(kind, kind + " in some channels, one call of ten", kind + "(" + channels.substr(2) + rarely, kPassesForRare);
      add(kind, kind + " in single elements", kind + "(extent.fraction=0.02, extent.structure=element", 1);
    }
  }
  grid.sites = full_grid().sites;
  for (FaultGrid::Site& site : grid.sites) site.is_a_class = site.where.starts_with("operator=");
  for (const char* family : {"matmul", "norm", "activation"})
    grid.sites.push_back({fmt::format("{} operators", family), std::string(family) == "matmul" ? "linear" : family,
                          fmt::format("operator={}", family), "", true, true});
  grid.sites.push_back({"layer input", "layer output", "module=layer_input,surface=input", "", true, true});
  grid.sites.push_back({"attention module", "attention", "module=self_attn,surface=output", "self_attn"});
  grid.sites.push_back({"embedding", "embedding", "module=embed_tokens,surface=output", "model.embed_tokens", false});
  grid.sites.push_back({"last norm", "norm", "module=model.norm,surface=output", "model.norm", false});
  grid.sites.push_back({"head", "head", "module=lm_head,surface=output", "lm_head", false});
  return grid;
}

FaultGrid smoke_grid() {
  FaultGrid all = full_grid(), grid;
  for (const std::size_t i : {0, 6, 12}) grid.entries.push_back(all.entries[i]);
  for (const std::size_t i : {0, 1, 8}) grid.sites.push_back(all.sites[i]);
  grid.extents = {1};
  grid.rare = {all.rare[0]};
  return grid;
}

CampaignSpec campaign_spec(const std::string& preset) {
  CampaignSpec spec;
  spec.preset = preset;
  if (preset == "full") {
    spec.grid = full_grid();
    return spec;
  }
  if (preset == "edges") {
    spec.grid = edges_grid();
    spec.methods = {"self", "shadow"};
    spec.trials = 20, spec.healthy = 120, spec.rare = 0, spec.fading = 0;
    return spec;
  }
  if (preset != "smoke") throw UsageError(fmt::format("a campaign is smoke, full or edges; got '{}'", preset));
  spec.grid = smoke_grid();
  spec.trials = 1, spec.healthy = 3, spec.rare = 1, spec.fading = 0;
  return spec;
}

}  // namespace faultline::diagnose
