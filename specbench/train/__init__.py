"""Training of drafters: prompts to answers of the target, answers to features, features to a drafter."""
