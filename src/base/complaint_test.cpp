// The list of codes and the form of a complaint in records, old ones included.
#include "base/complaint.h"
#include "base/json.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace faultline {
namespace complaint_test {

TEST(Complaint, TheTableFollowsTheEnum) {
  std::size_t index = 0;
  for (const ComplaintKind& kind : complaint_kinds()) {
    EXPECT_EQ(static_cast<std::size_t>(kind.code), index++) << kind.name;
    EXPECT_EQ(complaint_name(kind.code), kind.name);
    EXPECT_FALSE(kind.meaning.empty());
  }
  EXPECT_EQ(complaint_kinds().back().code, ComplaintCode::kUnproven);  // the last of the enum
}

TEST(Complaint, EveryNameIsAnotherOne) {
  std::set<std::string_view> names;
  for (const ComplaintKind& kind : complaint_kinds()) EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
}

TEST(Complaint, EveryCodeComesBackFromJson) {
  for (const ComplaintKind& kind : complaint_kinds()) {
    const Json json = to_json(Complaint{kind.code, "noise", "layers.0", "it did not happen"});
    EXPECT_EQ(json,
              Json({{"code", kind.name}, {"rule", "noise"}, {"place", "layers.0"}, {"sentence", "it did not happen"}}));
    const Complaint back = complaint_from_json(Json::parse(json.dump()));
    EXPECT_EQ(back.code, kind.code);
    EXPECT_EQ(back.rule, "noise");
    EXPECT_EQ(back.place, "layers.0");
    EXPECT_EQ(back.sentence, "it did not happen");
  }
}

TEST(Complaint, OldAndForeignRecordsAreUnproven) {
  const Complaint old = complaint_from_json("rule 'noise' never fired: nothing it names was called");
  EXPECT_EQ(old.code, ComplaintCode::kUnproven);
  EXPECT_EQ(old.sentence, "rule 'noise' never fired: nothing it names was called");
  const Complaint newer = complaint_from_json({{"code", "of_a_later_version"}, {"sentence", "no"}});
  EXPECT_EQ(newer.code, ComplaintCode::kUnproven);
  EXPECT_EQ(newer.sentence, "no");
  for (const Json& odd : {Json(), Json(3), Json::array({"x"}), Json{{"code", 1}, {"sentence", {1, 2}}}}) {
    EXPECT_EQ(complaint_from_json(odd).code, ComplaintCode::kUnproven) << odd.dump();
    EXPECT_EQ(complaint_from_json(odd).sentence, "") << odd.dump();
  }
}

TEST(Complaint, AnErrorCarriesWhatIsMissing) {
  const EvidenceError one(ComplaintCode::kCanary, "canary: nothing changed");
  EXPECT_STREQ(one.what(), "canary: nothing changed");
  ASSERT_EQ(one.complaints().size(), 1u);
  EXPECT_EQ(one.complaints()[0].code, ComplaintCode::kCanary);
  const EvidenceError two("evidence missing: ", {{ComplaintCode::kNeverFired, "a", "", "a never fired"},
                                                 {ComplaintCode::kStrength, "b", "", "b was too weak"}});
  EXPECT_STREQ(two.what(), "evidence missing: a never fired; b was too weak");
  EXPECT_EQ(two.complaints()[1].code, ComplaintCode::kStrength);
  EXPECT_EQ(sentences(two.complaints()), (std::vector<std::string>{"a never fired", "b was too weak"}));
}

}  // namespace complaint_test
}  // namespace faultline
