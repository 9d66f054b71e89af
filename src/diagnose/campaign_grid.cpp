// The grid of planted faults: what, how much of it, where.
#include "diagnose/campaign.h"

namespace faultline {

FaultGrid full_grid() {
  FaultGrid grid;
  grid.entries = {{"dead zone .03", "deadzone", "deadzone(threshold=0.03"},
                  {"dead zone .05", "deadzone", "deadzone(threshold=0.05"},
                  {"saturation 10%", "saturate", "saturate(margin=0.1"},
                  {"saturation 30%", "saturate", "saturate(margin=0.3"},
                  {"offset .01", "offset", "offset(strength=0.01"},
                  {"offset .1", "offset", "offset(strength=0.1"},
                  {"gain 1%", "gain", "gain(strength=0.01"},
                  {"gain 5%", "gain", "gain(strength=0.05"},
                  {"bias .01", "systematic_bias", "systematic_bias(strength={spread}"},
                  {"noise 1%", "noise", "relative_gaussian(strength=0.01"},
                  {"noise 5%", "noise", "relative_gaussian(strength=0.05"},
                  {"spike", "spike", "spike(probability=0.003"},
                  {"stuck mantissa bit", "stuck_at", "stuck_at(bit=3, value=1"},
                  {"stuck exponent bit", "stuck_at", "stuck_at(bit=8, value=1"},
                  {"mxfp4", "quantize", "quantize(format=mxfp4"}};
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
      {"input norm", "norm", "module=\'*input_layernorm\',surface=output", "input_layernorm"},
      {"second norm", "norm", "module=\'*post_attention_layernorm\',surface=output", "post_attention_layernorm"},
      {"attention", "attention", "operator=attention", "self_attn"},
      {"activation", "activation", "module=act_fn,surface=output", "mlp.act_fn"}};
  return grid;
}

FaultGrid smoke_grid() {
  FaultGrid all = full_grid(), grid;
  for (const std::size_t i : {0, 6, 12}) grid.entries.push_back(all.entries[i]);
  for (const std::size_t i : {0, 1, 8}) grid.sites.push_back(all.sites[i]);
  grid.extents = {1};
  return grid;
}

CampaignSpec full_campaign() {
  CampaignSpec spec;
  spec.grid = full_grid();
  return spec;
}

CampaignSpec smoke_campaign() {
  CampaignSpec spec;
  spec.grid = smoke_grid();
  spec.trials = 1, spec.healthy = 3;
  return spec;
}

}  // namespace faultline
