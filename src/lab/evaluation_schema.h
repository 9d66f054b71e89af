// The recipe section `evaluate:`, and an evaluation read from a whole recipe (task, evaluate, seed).
#pragma once

#include "lab/evaluation.h"

namespace faultline {

void register_evaluate_section();  // of the recipe's schema; once

EvaluationSpec read_evaluation(const Node& recipe);  // validated

}  // namespace faultline
