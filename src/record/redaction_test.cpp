#include "record/redaction.h"

#include <gtest/gtest.h>

#include "record/environment.h"

namespace faultline::record {
namespace redaction_test {

std::string clean(const std::string& text, RedactionOptions options = {}) {
  return Redactor(std::move(options)).text(text);
}

// Pieces, so that no scanner of repositories takes them for leaked ones.
const std::string kHub = std::string("hf_") + "abcdefghijklmnopqrstuvwxyzABCD";
const std::string kAmazon = std::string("AKIA") + "IOSFODNN7EXAMPLE";
const std::string kOpen = std::string("sk-") + "proj-abcdefghijklmnopqrstuvwx";
const std::string kSecret = "s3cr3t-value";

TEST(Redaction, TakesOutWhatIsCalledASecret) {
  for (const std::string& line :
       {"HF_TOKEN=" + kSecret, "export WANDB_API_KEY='" + kSecret + "'", "\"api_key\": \"" + kSecret + "\"",
        "{'accessToken': '" + kSecret + "'}", "password: " + kSecret, "DB_PASSWORD = " + kSecret, "--token " + kSecret,
        "--api-key=" + kSecret, "https://x.org/a?token=" + kSecret + "&b=1", "Authorization: Bearer " + kSecret,
        "curl -H 'Authorization: Basic " + kSecret + "' x", "{\\\"hub_token\\\": \\\"" + kSecret + "\\\"}",
        "client_secret=" + kSecret + ";", "Proxy-Authorization: " + kSecret + " more " + kSecret,
        "aws_secret_access_key = " + kSecret, "MY_KEY=" + kSecret, "MY_PASSWORD=a,b) " + kSecret,
        "postgres://user:" + kSecret + "@host/db", "http://user:a@" + kSecret + "@host"}) {
    const std::string result = clean(line);
    EXPECT_EQ(result.find(kSecret), std::string::npos) << line << " -> " << result;
    EXPECT_NE(result.find(kRedacted), std::string::npos) << line;
  }
  EXPECT_EQ(clean("a HF_TOKEN=x1 b"), "a HF_TOKEN=(redacted) b");
  EXPECT_EQ(clean("https://me:pw@host/x"), "https://(redacted)@host/x");
}

TEST(Redaction, TakesOutTokensByTheirForm) {
  for (const std::string& token :
       {kHub, kAmazon, kOpen, std::string("ghp_") + "0123456789abcdef0123", std::string("glpat-") + "abcdefgh1234"})
    for (const std::string& line : {token, "got " + token + ".", "('" + token + "')", "x=" + token,
                                    "{\"a\": \"b\\n" + token + "\\n\"}", "\x1b[1;32m" + token})
      EXPECT_EQ(clean(line).find(token), std::string::npos) << line << " -> " << clean(line);
}

TEST(Redaction, LeavesLogsReadable) {
  for (const char* line :
       {"tokens=1024 max_new_tokens: 5 n_tokens 7", "eos_token: '</s>' pad_token=<pad>", "key: loss", "token: 512",
        "loss=0.25 lr 1e-3", "NCCL_IB_PKEY=3 TOKENIZERS_PARALLELISM=false", "https://example.org:8080/a@b",
        "ssh://git@host/x", "risk-free and task-based words-with-dashes", "the token was refused", "Basic training",
        "half_precision hf_model hf_hub_download", "use_auth_token=None", "monkey: banana", "skipped sk-",
        "12:30:45 step: 3"})
    EXPECT_EQ(clean(line), line);
}

TEST(Redaction, TakesOutPrivateKeysAlsoWhereOneEndIsCutOff) {
  const std::string begin = "-----BEGIN RSA PRIVATE KEY-----", end = "-----END RSA PRIVATE KEY-----";
  EXPECT_EQ(clean("a\n" + begin + "\nMIIE\nabcd\n" + end + "\nb\n"), "a\n(redacted)\nb\n");
  EXPECT_EQ(clean("a\n" + begin + "\nMIIE\n"), "a\n(redacted)");
  EXPECT_EQ(clean("MIIE\nabcd\n" + end + "\nb\n"), "(redacted)\nb\n");
}

TEST(Redaction, TakesOutValuesAndNamesThatItIsGiven) {
  EXPECT_EQ(clean("x plainvalue y", {.values = {"plainvalue"}}), "x (redacted) y");
  const RedactionOptions names{.names = {{"/home/ada", "~"}, {"ada", "(user)"}}};
  EXPECT_EQ(clean("/home/ada/x ada@h cascada ada", names), "~/x (user)@h cascada (user)");
}

TEST(Redaction, OfJsonKnowsFieldsAndCounts) {
  Redactor redactor({});
  const Json json = redactor.json({{"environment", {{"HF_TOKEN", "abc"}, {"key", "loss"}, {"steps", 3}}},
                                   {"log", "Authorization: Bearer abc\nok"},
                                   {"list", {"token=abcd", 1, nullptr}}});
  EXPECT_EQ(json["environment"], Json({{"HF_TOKEN", kRedacted}, {"key", "loss"}, {"steps", 3}}));
  EXPECT_EQ(json["log"], "Authorization: (redacted)\nok");
  EXPECT_EQ(json["list"][0], "token=(redacted)");
  const Json lines = {"-----BEGIN PRIVATE KEY-----", "MIIE", "-----END PRIVATE KEY-----", "after"};
  EXPECT_EQ(Redactor({}).json(lines), Json({kRedacted, kRedacted, kRedacted, "after"}));
  EXPECT_EQ(redactor.counts(), (std::map<std::string, int64_t>{{"header", 1}, {"variable", 2}}));
}

TEST(Redaction, OfWhatIsCleanChangesNothing) {
  const std::string once = clean("HF_TOKEN=" + kSecret + " " + kHub + "\nAuthorization: x\nhttps://a:b@c/");
  EXPECT_EQ(clean(once), once);
}

}  // namespace redaction_test
}  // namespace faultline::record
