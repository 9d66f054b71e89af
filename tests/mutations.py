"""Small breakages of the source, each of which some test must notice: what is broken, where, the text and its replacement, the
target to build and the tests that are run. White space between words does not matter. `tests/mutate.py` applies them."""

import typing


class Mutation(typing.NamedTuple):
    what: str
    file: str
    old: str
    new: str
    target: str  # a GoogleTest executable of the build folder
    filter: str = "*"


MUTATIONS = [
    # --- base: statistics, schedules, configuration -----------------------------------------------------------------------
    Mutation("Holm: off by one in the factor", "src/base/stats_counts.cpp", "static_cast<double>(order.size() - rank) * p_values", "static_cast<double>(order.size() - rank - 1) * p_values", "base_test", "Holm*"),
    Mutation("Holm: adjusted values may fall again", "src/base/stats_counts.cpp", "running = std::max(running, std::min(1.0,", "running = std::max(0.0, std::min(1.0,", "base_test", "Holm*"),
    Mutation("Fisher: two-sided forgets equally probable tables", "src/base/stats_counts.cpp", "yes, no, in_a) * (1 + 1e-7);", "yes, no, in_a) * (1 - 1e-7);", "base_test", "Fisher*"),
    Mutation("McNemar: one-sided p reported as two-sided", "src/base/stats_counts.cpp", "return std::min(1.0, 2 * binomial_lower_tail(std::min(only_first, only_second)", "return std::min(1.0, 1 * binomial_lower_tail(std::min(only_first, only_second)", "base_test", "McNemar*"),
    Mutation("Clopper-Pearson: bound without the added success", "src/base/stats_intervals.cpp", "static_cast<double>(successes + 1), static_cast<double>(trials - successes), tail", "static_cast<double>(successes), static_cast<double>(trials - successes), tail", "base_test", "ClopperPearson*:WilsonInterval*"),
    Mutation("Clopper-Pearson: interval with both tails on each side", "src/base/stats_intervals.cpp", "const double tail = (1 - confidence) / 2; return {lower_bound", "const double tail = (1 - confidence); return {lower_bound", "base_test", "ClopperPearson*"),
    Mutation("standard deviation divides by n", "src/base/stats_intervals.cpp", "std::sqrt(squares / static_cast<double>(values.size() - 1))", "std::sqrt(squares / static_cast<double>(values.size()))", "base_test", "TInterval*:PairedTInterval*"),
    Mutation("paired differences turn round", "src/base/stats_intervals.cpp", "differences[i] = treated[i] - control[i]", "differences[i] = control[i] - treated[i]", "base_test", "PairedTInterval*:SignFlip*"),
    Mutation("schedule: the first stage is never silent", "src/base/schedule.cpp", "if (silent_first && interval == 0) return 0.0;", "", "base_test", "GlobalDecay*:EpochAware*"),
    Mutation("schedule: the last level is never reached", "src/base/schedule.cpp", "const int64_t last_level = silent_first ? count - 2 : count - 1;", "const int64_t last_level = silent_first ? count - 1 : count;", "base_test", "GlobalDecay*:EpochAware*"),
    Mutation("schedule: an interval begins one step late", "src/base/schedule.cpp", "const int64_t interval = step * count / length;", "const int64_t interval = (step * count - 1) / length;", "base_test", "GlobalDecay*:EpochAware*"),
    Mutation("schedule: a step past the end is an error", "src/base/schedule.cpp", "return std::min(step, total - 1);", "return step;", "base_test", "Schedule*:Linear*:GlobalDecay*"),
    Mutation("schedule: the late phase never begins", "src/base/schedule.cpp", "multiplier = late ? zone.late : zone.early;", "multiplier = late ? zone.early : zone.early;", "base_test", "Zones*"),
    Mutation("schedule: layers without a multiplier get none", "src/base/schedule.cpp", "if (listed == 0) return layer == kNoLayer ? spec.elsewhere : 1.0;", "if (listed == 0) return layer == kNoLayer ? spec.elsewhere : 0.0;", "base_test", "*"),
    Mutation("recipes: an unknown key is ignored", "src/base/validate.cpp", 'report(entry.key_position, key_path, "unknown key" + hint);', "(void)hint;", "base_test", "Validate*:SectionRegistry*"),
    Mutation("recipes: a missing key is ignored", "src/base/validate.cpp", "} else if (field.options.required) {", "} else if (false) {", "base_test", "Validate*"),
    Mutation("recipes: infinity is a number", "src/base/validate.cpp", "if (node.is_number() && !std::isfinite(node.as_number())) {", "if (node.is_number() && std::isnan(node.as_number())) {", "base_test", "Validate*"),
    Mutation("overrides: a plus changes what is there", "src/base/override.cpp", "} else if (change_.action == OverrideAction::kAdd) {", "} else if (false) {", "base_test", "Override*"),
    Mutation("overrides: a refused one leaves its path behind", "src/base/override.cpp", "Node changed = root;  // so that a refused override leaves no half-made path behind Walk(changed, change, schema).run(); root = std::move(changed);", "Walk(root, change, schema).run();", "base_test", "Override*"),
    # --- record: nothing torn, nothing twice ------------------------------------------------------------------------------
    Mutation("events: the checksum is not looked at", "src/record/jsonl.cpp", "return line.substr(body.size()) == seal(body);", "return line.size() >= body.size();", "record_test", "EventLog*"),
    Mutation("events: the line's number is not looked at", "src/record/jsonl.cpp", "if (!line.starts_with(prefix) || line[prefix.size()] != ',') {", "if (line.size() < prefix.size()) {", "record_test", "EventLog*"),
    Mutation("events: a torn tail stays", "src/record/jsonl.cpp", "if (recovered_.torn_bytes > 0) file_.truncate(recovered_.bytes);", "", "record_test", "EventLog*:FailingDisk*:RunDirectory*"),
    Mutation("events: rewinding keeps one line too many", "src/record/jsonl.cpp", "if (scanner.so_far().lines == lines) keep_bytes", "if (scanner.so_far().lines <= lines + 1) keep_bytes", "record_test", "EventLog*"),
    Mutation("events: a later version is read as ours", "src/record/jsonl.cpp", "version > kEventVersion) {", "version > kEventVersion + 1) {", "record_test", "EventLog*"),
    Mutation("append: a failed write is left in the file", "src/record/append_file.cpp", "tail_unknown_ = true; try { cut_to(size_); }", "try { if (false) cut_to(size_); }", "record_test", "FailingDisk*:EventLog*"),
    Mutation("append: no sync", "src/record/append_file.cpp", "write_all(file_, piece, path_); sync_data(file_, path_);", "write_all(file_, piece, path_);", "record_test", "FailingDisk*"),
    Mutation("atomic file: written in place", "src/record/atomic_file.cpp", 'target.parent_path() / fmt::format(".{}{}{}.{}", target.filename().string(), kMark, ::getpid(), counter++);\n      const int descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);', 'target; (void)counter;\n      const int descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);', "record_test", "AtomicFile*:FailingDisk*"),
    Mutation("atomic file: other people's files are stale too", "src/record/atomic_file.cpp", "if (name.starts_with('.') && name.find(kMark) != std::string::npos)", "if (name.starts_with('.'))", "record_test", "AtomicFile*:RunDirectory*"),
    Mutation("campaign: a trial without its evidence is committed", "src/record/campaign_store.cpp", "Statement evidence(database_, \"INSERT INTO evidence(trial, body) VALUES (last_insert_rowid(), ?1)\"); evidence.bind(1, to_json_text(trial.evidence)).step(); transaction.commit();", "transaction.commit(); Statement evidence(database_, \"INSERT INTO evidence(trial, body) VALUES (last_insert_rowid(), ?1)\"); evidence.bind(1, to_json_text(trial.evidence)).step();", "record_test", "CampaignStore*:FailingDisk*"),
    Mutation("campaign: a second trial replaces the first", "src/record/campaign_store.cpp", "ON CONFLICT (cell, trial_index) DO NOTHING", "ON CONFLICT (cell, trial_index) DO UPDATE SET seed = excluded.seed", "record_test", "CampaignStore*"),
    Mutation("campaign: a verdict without evidence is read", "src/record/campaign_store.cpp", 'if (row.is_null(8)) throw EvidenceError(place + ": a verdict without evidence; the file was edited");', "if (row.is_null(8)) return trial;", "record_test", "CampaignStore*"),
    Mutation("campaign: the last trial of a cell is left out", "src/record/campaign_store.cpp", "for (int64_t index = 0; index < trials; ++index) {", "for (int64_t index = 0; index + 1 < trials; ++index) {", "record_test", "CampaignStore*"),
    Mutation("manifest: a changed recipe resumes", "src/record/manifest.cpp", "if (json_hash(wanted) == manifest.hash()) return;", "return;", "record_test", "RunDirectory*"),
    Mutation("documents: the seal is not looked at", "src/record/document.cpp", "if (version != kDocumentVersion || seal != json_hash(document)) {", "if (version != kDocumentVersion) {", "record_test", "RunDirectory*"),
    Mutation("run directory: a name is used again", "src/record/run_directory.cpp", "AT_FDCWD, target.c_str(), RENAME_NOREPLACE);", "AT_FDCWD, target.c_str(), 0);", "record_test", "RunDirectory*"),
    Mutation("run directory: a name may be a path", "src/record/run_directory.cpp", "result += letter || inner ? c : '_';", "result += letter || inner || c == '/' || c == '.' ? c : '_';", "record_test", "RunDirectory*"),
    Mutation("run directory: complete without the last evaluation", "src/record/run_directory.cpp", "return step_reached == steps_planned && (!step_evaluated || *step_evaluated == step_reached);", "return step_reached == steps_planned;", "record_test", "RunDirectory*"),
    Mutation("lock: a second process gets in", "src/record/directory_lock.cpp", "if (result != 0 && errno == EWOULDBLOCK) {", "if (result != 0 && errno == EWOULDBLOCK && false) {", "record_test", "RunDirectory*"),
    Mutation("safetensors: tensors may overlap", "src/record/safetensors_header.cpp", "if (tensor->begin != end) damaged", "if (tensor->begin > end) damaged", "record_test", "SafetensorsHeader*"),
    Mutation("safetensors: sizes may overflow", "src/record/safetensors_header.cpp", "if (overflow || bytes != entry.end - entry.begin) {", "if (!overflow && bytes != entry.end - entry.begin) {", "record_test", "SafetensorsHeader*"),
    Mutation("environment: tokens are no secrets", "src/record/environment.cpp", '{"token", "key", "secret", "password"}', '{"tokn", "key", "secret", "password"}', "record_test", "Environment*"),
    Mutation("environment: children get everything", "src/record/environment.cpp", "if (needed || (is_recorded_variable(name) && !names_a_secret(name))) inherited[name] = value;", "(void)needed; inherited[name] = value;", "record_test", "Environment*"),
    Mutation("comparison: close is equal", "src/record/comparison.cpp", "if (apart > 0 && apart <= options_.tolerance)", "if (apart <= options_.tolerance + 1e-12)", "record_test", "Comparison*"),
    Mutation("comparison: what is new is not looked at", "src/record/comparison.cpp", "if (!was.contains(key) && !options_.ignored.contains(key)) missing(", "if (false) missing(", "record_test", "Comparison*"),
    # --- report -----------------------------------------------------------------------------------------------------------
    Mutation("pages: markup from a record is markup", "src/report/html.cpp", "case '<': out += \"&lt;\"; return;", "case '<': out += '<'; return;", "report_test", "Html*:Page*:Charts*"),
    Mutation("pages: a number without evidence is shown", "src/report/eval_rows.cpp", "if (!row.proven) return row;", "", "report_test", "Page*:Kinds*"),
    Mutation("pages: many comparisons count as one", "src/report/eval_rows.cpp", "row.p_holm = adjusted[next++];", "row.p_holm = *row.p + 0 * adjusted[next++];", "report_test", "Page*"),
    Mutation("pages: an unfinished run is not said", "src/report/loaded_record.cpp", "if (summary.step_evaluated && *summary.step_evaluated != summary.step_reached)", "if (false)", "report_test", "Page*:Kinds*"),
    # --- numeric ------------------------------------------------------------------------------------------------------------
    Mutation("evidence: a site that was never reached is fine", "src/numeric/evidence.cpp", 'if (n.calls == 0) complain("its site was never reached");', "", "numeric_test", "Evidence*:Ledger*"),
    Mutation("evidence: nothing changed is fine", "src/numeric/evidence.cpp", 'complain("it changed not one bit");', "(void)0;", "numeric_test", "Evidence*:Ledger*"),
    Mutation("evidence: any strength is the asked one", "src/numeric/evidence.cpp", "if (*n.relative_rms >= band->low && *n.relative_rms <= band->high) return {};", "return {};", "numeric_test", "Evidence*:Ledger*"),
    Mutation("keys: the rule's name plays no part", "src/numeric/lower.cpp", "hash64(identity.site, hash64(rule_name, mix64(identity.seed,", "hash64(identity.site, hash64(std::string_view(rule_name).substr(0, 0), mix64(identity.seed,", "numeric_test", "Keys*:Apply*"),
    Mutation("rules: a structure without effect is taken", "src/numeric/rule.cpp", 'if (given != nullptr && extent.at("fraction").as_number() == 1) {', 'if (given != nullptr && extent.at("fraction").as_number() > 1) {', "numeric_test", "Rule*"),
    # --- tap ----------------------------------------------------------------------------------------------------------------
    Mutation("skip the out= overloads", "src/tap/operators.cpp", "if (!op || excepted) continue;", 'if (!op || excepted || name.overload_name == "out") continue;', "tap_test"),
    Mutation("forget backward", "src/site/scope.cpp", "return {change_of_node(*node).place, Phase::kActorBackward};", "return {change_of_node(*node).place, Phase::kRef};", "tap_test"),
    Mutation("never start call numbers again", "src/tap/plan.cpp", "for (auto& table : tables_) write_controls(*table);", "", "tap_test"),
    Mutation("fault the input in place", "src/tap/boundary.cpp", "at::Tensor y = x.clone();\n    plan->act", "at::Tensor y = x;\n    plan->act", "tap_test"),
    Mutation("every nested call acts", "src/tap/operator_tap.cpp", "const ActingGuard guard(named);\n      original", "const ActingGuard guard(0);\n      original", "tap_test"),
    Mutation("ignore the rule's layers", "src/tap/plan_rule.cpp", 'if (!rule_means_layer(where, place)) return "not one of the rule\'s layers";', "", "tap_test"),
    Mutation("reevaluate: the second pass measures anew", "src/tap/plan.cpp", "if (row.first != nullptr) tensors.reference = &references()[row.first];", "", "tap_test", "Reevaluate*"),
    Mutation("ignore the phases", "src/tap/plan_rule.cpp", "if (!rule.phases.test(static_cast<std::size_t>(location.phase)))", "if (false)", "tap_test"),
    Mutation("drop the never-fired check", "src/tap/report.cpp", "if (example == nullptr || sum.calls == 0) {", "if (example != nullptr && sum.calls == 0) {", "tap_test"),
    Mutation("drop the count check", "src/tap/counts.cpp", "if (all_counted != all_expected) {", "if (false) {", "tap_test"),
    Mutation("weights: forget backward", "src/tap/substitution.cpp", "const bool weights = surface == Surface::kWeight && !above_autograd;", "const bool weights = surface == Surface::kWeight && !above_autograd && location.phase != Phase::kActorBackward;", "tap_test"),
    Mutation("weights: never refresh the copy", "src/tap/substitution.cpp", "entry.copy.defined() && entry.version == version_of(parameter) && entry.epoch == epoch_", "entry.copy.defined()", "tap_test"),
    Mutation("inputs: below autograd too", "src/tap/substitution.cpp", "const bool inputs = surface == Surface::kInput && (above_autograd || !inputs_done);", "const bool inputs = surface == Surface::kInput;", "tap_test"),
    Mutation("written arguments are overlooked", "src/tap/operators.cpp", "alias != nullptr && alias->isWrite()", "alias != nullptr && !alias->isWrite()", "tap_test"),
    Mutation("the mask forgets zeros", "src/tap/boundary.cpp", "rule.what.kind == FaultKind::kDeadzone || rule.what.kind == FaultKind::kZero ? after.eq(0) : after.ne(before)", "rule.what.kind == FaultKind::kZero ? after.eq(0) : after.ne(before)", "tap_test"),
    Mutation("the seed is ignored", "src/tap/plan.cpp", "{settings_.seed, ", "{0, ", "tap_test"),
    # --- race and triage ----------------------------------------------------------------------------------------------------
    Mutation("attribution: a bad shard is the collective's", "src/race/attribution.cpp", "return (wrong & kIn) != 0 ? Cause::kLocalMemory : Cause::kCollective;", "return (wrong & kIn) != 0 ? Cause::kCollective : Cause::kLocalMemory;", "race_test", "CauseOf*:Attribution*"),
    Mutation("attribution: communication and reference are one cause", "src/race/attribution.cpp", "if (communication && reference) return Cause::kAmbiguous;", "if (communication && reference) return Cause::kCollective;", "race_test", "CauseOf*"),
    Mutation("attribution: consequences are not counted", "src/race/attribution.cpp", "unexplained(rank, layer) == 0) add_consequence(rank, layer);", "unexplained(rank, layer) == 0) bad_senders_.clear();", "race_test", "Attribution*"),
    Mutation("patterns: the layer plays no part", "src/race/patterns.cpp", "word = mix64(word, static_cast<uint64_t>(place.layer));", "", "race_test", "Patterns*"),
    Mutation("patterns: the iteration plays no part", "src/race/patterns.cpp", "word = mix64(word, static_cast<uint64_t>(place.iteration));", "", "race_test", "Patterns*:Diagnosis*"),
    Mutation("patterns: sums are not exact", "src/race/patterns.cpp", "exact_bits(type) + 1 - ceil_log2(ranks));", "exact_bits(type) + 3 - ceil_log2(ranks));", "race_test", "Patterns*"),
    Mutation("poison may be zero", "src/race/patterns.cpp", "static_cast<uint32_t>(word & 0xFFFFu) | 1u;", "static_cast<uint32_t>(word & 0u);", "race_test", "Patterns*:Diagnosis*:Run*:Selftest*"),
    Mutation("triage: errors stay in the denominator", "src/triage/statistics.cpp", "default: ++cell.errors;", "default: ++cell.passed; ++cell.errors;", "triage_test", "Statistics*"),
    Mutation("triage: a baseline that did not run is fine", "src/triage/statistics.cpp", "matrix.disqualified = baseline.valid() == 0;", "matrix.disqualified = false;", "triage_test", "Statistics*"),
    Mutation("triage: an unread mitigation is not said", "src/triage/statistics.cpp", "if (logged && !read)", "if (logged && !read && !logged)", "triage_test", "Statistics*"),
    Mutation("triage: p without correction", "src/triage/statistics.cpp", "if (!cell.p_adjusted || *cell.p_adjusted >= kAlpha)", "if (!cell.p_value || *cell.p_value >= 1)", "triage_test", "Statistics*"),
    Mutation("triage: bundles overrule each other", "src/triage/bundles.cpp", "if (!fresh && place->second != value)", "if (false)", "triage_test", "Recipe*:Bundles*"),
    Mutation("triage: a recipe may set any variable", "src/triage/bundles.cpp", "if (!is_cell_variable(name))", "if (false)", "triage_test", "Recipe*:Bundles*"),
    Mutation("triage: an answer needs no nonce", "src/triage/answer.cpp", 'if (answer.at("nonce") != nonce) return unreadable("the answer is of another request");', "(void)nonce;", "triage_test", "Answer*"),
    Mutation("bisect: one clean trial is enough", "src/triage/bisect.cpp", "step.stops = step.failures == 0 && step.trials >= wanted;", "step.stops = step.failures == 0;", "triage_test", "Bisect*"),
    # --- model and task -----------------------------------------------------------------------------------------------------
    Mutation("shards may lie outside the folder", "src/model/safetensors_folder.cpp", 'name.ends_with(".safetensors") && name.find_first_of(std::string("/\\\\\\0", 3)) == std::string::npos;', 'name.ends_with(".safetensors");', "model_test", "CheckpointFiles*"),
    Mutation("GGUF: tensors may overlap", "src/model/gguf_parser.cpp", "if (placed.offset < end) reader.damaged", "if (end > end + placed.offset) reader.damaged", "model_test", "Gguf*"),
    Mutation("GGUF: tensors may reach past the file", "src/model/gguf_parser.cpp", "if (placed.offset > data.size() || placed.bytes > data.size() - placed.offset) {", "if (placed.offset > data.size()) {", "model_test", "Gguf*"),
    Mutation("merges: the first rank of a pair wins", "src/model/bpe.cpp", "rules_[at] = {pair, rank, merge.result};", "if (rules_[at].pair == kNoPair) rules_[at] = {pair, rank, merge.result};", "model_test", "Tokenizer*"),
    Mutation("chat: no default system message", "src/model/chat.cpp", 'if (format.default_system && messages[0].role != "system") turn("system", *format.default_system);', 'if (format.default_system && messages.empty()) turn("system", *format.default_system);', "model_test", "Chat*"),
    Mutation("chat: any role", "src/model/chat.cpp", 'if (message.role != "system" && message.role != "user" && message.role != "assistant")', "if (false)", "model_test", "Chat*"),
    Mutation("reward: the first marked number", "src/task/reward.cpp", "for (size_t place = text.rfind(kMark);", "for (size_t place = text.find(kMark);", "task_test", "Reward*"),
    Mutation("reward: commas stay", "src/task/reward.cpp", "std::erase(number, ',');", "", "task_test", "Reward*"),
    Mutation("reward: the whole response is searched", "src/task/reward.cpp", "const std::string_view text = last_characters(response);", "const std::string_view text = last_characters(response).empty() ? last_characters(response) : response;", "task_test", "Reward*"),
    Mutation("reward: no answer is right where none is wanted", "src/task/reward.cpp", "return !found.empty() && found == answer ? 1.0 : 0.0;", "return found == answer ? 1.0 : 0.0;", "task_test", "Reward*"),
    # --- aqn, train, diagnose -----------------------------------------------------------------------------------------------
    Mutation("aqn: the step plays no part", "src/aqn/norm_noise.cpp", "mix64(mix64(seed, hash64(name)), static_cast<uint64_t>(step));", "mix64(mix64(seed, hash64(name)), 0 * static_cast<uint64_t>(step));", "aqn_test"),
    Mutation("aqn: multipliers by layer are dropped", "src/aqn/norm_noise.cpp", "sigma * layer_multiplier(spec_.schedule, place_of(target.place).layer, layer_count_, step, total_steps_);", "sigma;", "aqn_test"),
    Mutation("aqn: the clean weights do not come back", "src/aqn/norm_noise.cpp", "*targets_[i].weight = clean_[i];", "(void)clean_[i];", "aqn_test"),
    Mutation("aqn: nothing matched is fine", "src/aqn/norm_noise.cpp", "if (chosen.empty()) throw UsageError(", "if (false) throw UsageError(", "aqn_test"),
    Mutation("checkpoints: a torn one is loaded", "src/train/checkpoint.cpp", "if (hash_of(file) != stored.tensors)", "if (false)", "train_test", "Checkpoint*"),
    Mutation("checkpoints: another model's is loaded", "src/train/checkpoint.cpp", "if (stored.model != fingerprint)", "if (stored.model != stored.model && stored.model != fingerprint)", "train_test", "Checkpoint*:Lesson33*"),
    Mutation("training: the last step is not evaluated", "src/train/trainer.cpp", "return stage_ends() || (spec.validate_every > 0", "return (spec.validate_every > 0", "train_test", "Lesson29*:Trainer*"),
    Mutation("training: a resumed run repeats its events", "src/train/trainer.cpp", "if (directory.events().lines() > state.event_lines) directory.events().rewind(state.event_lines);", "", "train_test", "Checkpoint*"),
    Mutation("diagnosis: exact relations get slack", "src/diagnose/observation.cpp", "return observed.ne(observation.expected.to(observed.scalar_type())).logical_and(both_nan.logical_not());", "return (observed - observation.expected).abs().gt(0.05 * observation.expected.abs()).logical_and(both_nan.logical_not());", "diagnose_test", "Observation*"),
    Mutation("diagnosis: classic's scores are not bounded", "src/diagnose/classic.cpp", "kLargestZ = 1e3;", "kLargestZ = 1e30;", "diagnose_test", "Classic*"),
]
