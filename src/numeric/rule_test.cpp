// The rule grammar: what it accepts, what it refuses and in which words.
#include "numeric/rule.h"

#include <gtest/gtest.h>

#include "numeric/lower.h"
#include "numeric/resolution.h"

namespace faultline::numeric {
namespace rule_test {

std::string refusal(std::string_view text, RuleUse use = RuleUse::kOnTensor) {
  try {
    parse_rule(text, use);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refusal(std::string_view text, std::string_view words, RuleUse use = RuleUse::kOnTensor) {
  EXPECT_NE(refusal(text, use).find(words), std::string::npos) << text << "\n -> " << refusal(text, use);
}

TEST(Rule, ShortFormExpandsToTheSameMap) {
  const Rule short_form = parse_rule("relative_gaussian(strength=0.05) @ operator=matmul,layer=15", RuleUse::kInPlan);
  const Rule map = parse_rule(
      "{name: relative_gaussian, where: {operator: matmul, layer: 15}, what: {kind: relative_gaussian, strength: "
      "0.05}}",
      RuleUse::kInPlan);
  EXPECT_EQ(short_form.source, map.source);
  EXPECT_EQ(short_form.where->operator_pattern, "matmul");
  ASSERT_EQ(short_form.where->layers.size(), 1u);
  EXPECT_EQ(short_form.where->layers[0].first, 15);
  EXPECT_EQ(short_form.where->surface, site::Surface::kOutput);
}

TEST(Rule, ReadsEveryPart) {
  const Rule rule = parse_rule(
      "{name: zone, where: {module: layer_output, layer: ['10-20', 25], surface: output, except: [router]},"
      " what: {kind: deadzone, threshold: 0.04, axis: tensor}, extent: {fraction: 0.1, structure: tile, tile: 4x16},"
      " lifetime: {kind: window, from: 3, to: 9}, gradient: masked, phases: {rollout: true, eval: both},"
      " schedule: {kind: linear, sigma_start: 0.05, sigma_end: 0}, reevaluate: true}",
      RuleUse::kInPlan);
  EXPECT_EQ(rule.what.axis, Axis::kTensor);
  EXPECT_EQ(rule.extent.structure, Structure::kTile);
  EXPECT_EQ(rule.extent.tile_columns, 16);
  EXPECT_EQ(rule.lifetime.kind, Lifetime::kWindow);
  EXPECT_EQ(rule.lifetime.to, 9);
  EXPECT_EQ(rule.gradient, GradientRule::kMasked);
  EXPECT_TRUE(rule.reevaluate);
  EXPECT_TRUE(parse_rule("spike(rule.keyed_by=row)", RuleUse::kOnTensor).keyed_by_row);
  ASSERT_TRUE(rule.schedule.has_value());
  EXPECT_EQ(rule.schedule->kind, ScheduleKind::kLinear);
  ASSERT_EQ(rule.where->layers.size(), 2u);
  EXPECT_EQ(rule.where->layers[1].last, 25);
  EXPECT_TRUE(rule.phases.at("rollout").as_bool());
}

TEST(Rule, RefusesWhatIsOutOfRangeNamingParameterValueAndRange) {
  expect_refusal("relative_gaussian(strength=-0.1)", "what.strength: expected a number in [0, 1000000], got -0.1");
  expect_refusal("relative_gaussian(strength=.nan)", "what.strength");
  expect_refusal("relative_gaussian(strength=.inf)", "what.strength");
  expect_refusal("relative_gaussian", "strength");
  expect_refusal("deadzone(threshold=1.5)", "what.threshold");
  expect_refusal("zero(extent.fraction=0)", "extent.fraction");
  expect_refusal("zero(extent.fraction=0.1, extent.structure=tile)", "tile: RxC goes with structure: tile");
  expect_refusal("zero(extent.fraction=0.1, extent.structure=tile, extent.tile=4by4)", "ROWSxCOLUMNS");
  expect_refusal("zero(lifetime.kind=transient, lifetime.probability=0)", "lifetime.probability");
  expect_refusal("zero(lifetime.kind=window, lifetime.from=5, lifetime.to=5)", "window is empty");
}

TEST(Rule, ReadsExactPlaces) {
  const Rule rule = parse_rule(
      "{name: z, what: {kind: zero}, extent: {rows: [3, '5-7', '9-'], columns: -1, fraction: 0.5, structure: lane}}",
      RuleUse::kOnTensor);
  ASSERT_EQ(rule.extent.rows.size(), 3u);
  EXPECT_EQ(rule.extent.rows[1].last, 7);
  EXPECT_EQ(rule.extent.rows[2].last, kToTheEnd);
  EXPECT_EQ(rule.extent.columns[0].first, -1);
  EXPECT_EQ(rule.extent.structure, Structure::kLane);
  EXPECT_FALSE(parse_rule("zero", RuleUse::kOnTensor).extent.is_partial());
  EXPECT_TRUE(parse_rule("zero(extent.at=[[1, 2]])", RuleUse::kOnTensor).extent.is_partial());
}

TEST(Rule, RefusesPlacesThatSayNothing) {
  expect_refusal("zero(extent.rows='7-5')", "the range '7-5' is empty: it counts downwards; write '5-7'");
  expect_refusal("zero(extent.rows='five')", "a range is '4-7'");
  expect_refusal("zero(extent.rows=[])", "extent.rows");
  expect_refusal("zero(extent.row=3)", "did you mean 'rows'?");
  expect_refusal("zero(extent.at=[[1, 2, 3]])", "extent.at");
  expect_refusal("zero(extent.at=[3])", "extent.at");
  expect_refusal("zero(extent.rows=1, extent.elements=4)", "three ways to say the same");
  expect_refusal("zero(extent.rows=[1, 3, 5, 7, 9], extent.columns=[1, 3, 5, 7])", "at most 8 ranges");
  expect_refusal("zero(extent.elements=[1, 3, 5, 7, 9, 11, 13, 15, 17])", "extent.elements");
  expect_refusal("zero(extent.rows=1, extent.structure=row)", "structure: row has no effect with fraction: 1");
  expect_refusal("swap(extent.rows=1)", "leave extent out");
  expect_refusal("bitflip(bit=3, count=1, extent.columns=2)", "use rate together with an extent");
}

TEST(Rule, ReadsConditions) {
  const auto when = [](const std::string& text) {
    return *parse_rule("zero(" + text + ") @ operator=matmul", RuleUse::kInPlan).when;
  };
  EXPECT_FALSE(site::holds(when("when.rows='>8'"), 8, 1));
  EXPECT_TRUE(site::holds(when("when.rows='> 8'"), 9, 1));
  EXPECT_TRUE(site::holds(when("when.rows='>=8'"), 8, 1));
  EXPECT_TRUE(site::holds(when("when.rows='<8'"), 7, 1));
  EXPECT_FALSE(site::holds(when("when.rows='<8'"), 8, 1));
  EXPECT_TRUE(site::holds(when("when.rows='<=8', when.columns='2-4'"), 8, 4));
  EXPECT_FALSE(site::holds(when("when.rows='<=8', when.columns='2-4'"), 8, 5));
  EXPECT_FALSE(site::holds(when("when.rows=1"), 2, 1));
  EXPECT_TRUE(site::means_kind(when("when.forward=[prefill, decode]"), site::ForwardKind::kDecode));
  EXPECT_FALSE(site::means_kind(when("when.forward=prefill"), site::ForwardKind::kDecode));
  EXPECT_FALSE(site::means_kind(when("when.decode_step=0"), site::ForwardKind::kPrefill));
}

TEST(Rule, RefusesConditionsThatSayNothing) {
  const auto expect = [](const std::string& text, const char* words) {
    expect_refusal("zero(" + text + ") @ operator=matmul", words, RuleUse::kInPlan);
  };
  expect("when.rows='>x'", "'>8', '>=8'");
  expect("when.rows='<0'", "no number is '<0'");
  expect("when.rows='5-2'", "no number is '5-2'");
  expect("when.row=3", "did you mean 'rows'?");
  expect("when.forward=prefil", "did you mean 'prefill'?");
  expect("when.forward=prefill, when.decode_step=3", "decode_step counts decodings");
  expect_refusal("{name: z, where: {operator: matmul}, what: {kind: zero}, when: {}}", "say when", RuleUse::kInPlan);
  expect_refusal("zero(when.rows=3)", "when belongs to a rule of a plan");
}

TEST(Rule, KnowsWhichFaultsDoTheSameEveryTime) {
  const auto same = [](const char* text) { return always_does_the_same(parse_rule(text, RuleUse::kOnTensor)); };
  for (const char* text : {"gain(strength=0.02)", "truncate(bits=4)", "deadzone(threshold=0.1)", "saturate(limit=2)",
                           "offset(strength=1)", "zero(extent.fraction=0.1)", "quantize(format=mxfp4)"})
    EXPECT_TRUE(same(text)) << text;
  for (const char* text :
       {"relative_gaussian(strength=0.1)", "truncate(bits=2, mode=stochastic)", "bitflip(bit=3, count=1)",
        "gain(strength=0.1, rule.rounding=stochastic)", "zero(lifetime.kind=transient, lifetime.probability=0.5)",
        "zero(lifetime.kind=window, lifetime.from=1, lifetime.to=2)", "quantize(format=mxfp4, rounding=stochastic)",
        "{name: g, what: {kind: gain, strength: 0.1}, schedule: {kind: constant}}"})
    EXPECT_FALSE(same(text)) << text;
}

TEST(Rule, RefusesUnknownNamesWithTheNearestOne) {
  expect_refusal("relative_gausian(strength=0.1)", "did you mean 'relative_gaussian'?");
  expect_refusal("deadzone(treshold=0.1)", "did you mean 'threshold'?");
  expect_refusal("quantize(format=nvpf4)", "did you mean 'nvfp4'?");
  expect_refusal("relative_gaussian(strength=0.1) @ opertor=matmul", "did you mean 'operator'?", RuleUse::kInPlan);
}

TEST(Rule, RefusesCombinationsThatWouldDoNothing) {
  expect_refusal("bitflip(bit=3)", "count (elements per call) or rate");
  expect_refusal("bitflip(bit=3, field=sign, count=1)", "bit or field, not both");
  expect_refusal("swap(extent.fraction=0.5)", "swap exchanges regions of the whole tensor");
  expect_refusal("relative_gaussian(strength=0.1, rule.gradient=masked)", "masked is for faults that force a constant");
  expect_refusal("gain(strength=0.1, rule.reevaluate=true)", "reevaluate");
  expect_refusal("quantize(format=mxfp4, scheme=affine)", "affine applies to the int formats");
  expect_refusal("quantize(format=mxfp4, granularity=row)", "does not apply");
  expect_refusal("quantize(format=bfp, block=24)", "8, 16, 32, 64, 128 or 256");
  expect_refusal("{name: z, what: {kind: zero}, schedule: {kind: constant}}",
                 "no strength that a schedule could change");
  expect_refusal("zero(rule.keyed_by=row)", "keyed_by: row is for faults that draw");
  expect_refusal("quantize(format=mxfp4, rule.keyed_by=row)", "keyed_by: row is for faults that draw");
  expect_refusal("stuck_at(bit=1, rule.rounding=stochastic)", "nothing to round");
  expect_refusal("saturate(margin=0.1, limit=2)", "not both");
  const std::string no_axis = "nothing is measured; leave axis out, or ";
  expect_refusal("deadzone(relative_to=none, axis=token)",
                 "with relative_to: none " + no_axis + "set relative_to: max");
  expect_refusal("offset(strength=1, scale=absolute, axis=tensor)", "with scale: absolute " + no_axis);
  expect_refusal("saturate(limit=2, axis=channel)", "with limit " + no_axis + "give margin instead");
  expect_refusal("zero(extent.structure=row)", "structure: row has no effect with fraction: 1");
  expect_refusal("zero(extent.fraction=1, extent.structure=element)",
                 "give a fraction below 1, or leave structure out");
  expect_refusal("zero", "where", RuleUse::kInPlan);
  expect_refusal("zero @ operator=mm,module=x", "one of them", RuleUse::kInPlan);
}

TEST(Rule, FillsInAxisAndStructureOnlyWhereTheyAct) {
  const auto what = [](const char* text) { return parse_rule(text, RuleUse::kOnTensor).source.at("what"); };
  for (const char* text : {"deadzone", "offset(strength=1)", "saturate", "saturate(margin=0.1)"})
    EXPECT_EQ(what(text).at("axis"), Node("token")) << text;
  for (const char* text : {"deadzone(relative_to=none)", "offset(strength=1, scale=absolute)", "saturate(limit=2)"})
    EXPECT_EQ(what(text).find("axis"), nullptr) << text;
  EXPECT_EQ(parse_rule("deadzone(axis=channel)", RuleUse::kOnTensor).what.axis, Axis::kChannel);
  const auto extent = [](const char* text) { return parse_rule(text, RuleUse::kOnTensor).source.at("extent"); };
  EXPECT_EQ(extent("zero(extent.fraction=0.5)").at("structure"), Node("element"));
  EXPECT_EQ(extent("zero").find("structure"), nullptr);
  EXPECT_EQ(extent("zero(extent.fraction=1)").find("structure"), nullptr);
}

TEST(Rule, SaysThatARangeOfLayersCountsDownwards) {
  const char* words = "where.layer: the range '20-10' is empty: it counts downwards; write '10-20'";
  expect_refusal("zero @ operator=mm,layer=20-10", words, RuleUse::kInPlan);
  expect_refusal("{name: z, where: {operator: mm, layer: [3, 20-10]}, what: {kind: zero}}",
                 "where.layer[1]: the range '20-10' is empty", RuleUse::kInPlan);
  expect_refusal("zero @ operator=mm,layer=first", "a layer is a number (15), a range ('10-20') or all; got 'first'",
                 RuleUse::kInPlan);
}

TEST(Rule, RefusesMalformedShortForms) {
  for (const char* text : {"", "(", "zero(", "zero)", "zero(x)", "zero(=1)", "zero(a=1,a=2)",
                           "zero(extent.fraction=0.5, extent.fraction=0.5)", "zero(a='x)", "zero(a=[1,2)",
                           "@ operator=mm", "zero(a.b.c=1)"}) {
    EXPECT_NE(refusal(text), "accepted") << text;
  }
}

TEST(Lowering, RefusesABitBeyondTheDtype) {
  const Rule rule = parse_rule("stuck_at(bit=20)", RuleUse::kOnTensor);
  EXPECT_NO_THROW(lower_fault(rule, {Dtype::kFloat32, 8, 8}, {}, {}));
  try {
    lower_fault(rule, {Dtype::kBFloat16, 8, 8}, {}, {});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "rule 'stuck_at': bit 20 does not exist in bf16; its bits are 0 to 15");
  }
}

TEST(Lowering, RefusesATruncationThatCutsNothing) {
  EXPECT_THROW(lower_fault(parse_rule("truncate(bits=7)", RuleUse::kOnTensor), {Dtype::kBFloat16, 8, 8}, {}, {}),
               UsageError);
  EXPECT_NO_THROW(lower_fault(parse_rule("truncate(bits=7)", RuleUse::kOnTensor), {Dtype::kFloat16, 8, 8}, {}, {}));
}

// Lesson 55: published strengths of 1e-5 and 1e-4 changed not one bf16 element.
TEST(Resolution, RefusesAStrengthThatBf16CannotShow) {
  for (const char* strength : {"1e-5", "1e-4", "3e-4"}) {
    const Rule rule = parse_rule(std::string("relative_gaussian(strength=") + strength + ")", RuleUse::kOnTensor);
    EXPECT_THROW(check_visible(rule, Dtype::kBFloat16), UsageError) << strength;
    EXPECT_NO_THROW(check_visible(rule, Dtype::kFloat32)) << strength;
  }
  EXPECT_NO_THROW(check_visible(parse_rule("relative_gaussian(strength=1e-3)", RuleUse::kOnTensor), Dtype::kBFloat16));
  EXPECT_NO_THROW(check_visible(
      parse_rule("relative_gaussian(strength=1e-4, rule.rounding=stochastic)", RuleUse::kOnTensor), Dtype::kBFloat16));
  EXPECT_NO_THROW(check_visible(
      parse_rule("relative_gaussian(strength=1e-4, rule.expect=invisible)", RuleUse::kOnTensor), Dtype::kBFloat16));
}

TEST(Resolution, KnowsTheRoundingOfFp32) {
  EXPECT_THROW(check_visible(parse_rule("gain(strength=1e-8)", RuleUse::kOnTensor), Dtype::kFloat32), UsageError);
  EXPECT_NO_THROW(check_visible(parse_rule("gain(strength=1e-6)", RuleUse::kOnTensor), Dtype::kFloat32));
  EXPECT_NEAR(predict_visibility(parse_rule("gain(strength=1e-4, rule.rounding=stochastic)", RuleUse::kOnTensor),
                                 Dtype::kBFloat16)
                  ->changed,
              0.02, 0.01);
}

TEST(Resolution, PredictsTheStrengthAfterRounding) {
  const auto ratio = [](double strength) {
    const Rule rule = parse_rule("relative_gaussian(strength=" + std::to_string(strength) + ")", RuleUse::kOnTensor);
    return predict_visibility(rule, Dtype::kBFloat16)->relative_rms / strength;
  };
  EXPECT_NEAR(ratio(1e-3), 0.50, 0.03);
  EXPECT_NEAR(ratio(3e-3), 1.12, 0.02);
  EXPECT_NEAR(ratio(1e-2), 1.01, 0.01);
}

}  // namespace rule_test
}  // namespace faultline::numeric
