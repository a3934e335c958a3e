"""From a configuration to its environment: the one place that knows all kinds. Called by controller, roles and doors.

An environment speaks the model's language: a few words of its own to a small model that is trained from nothing, the chat
template and the tool calls of a pretrained one. Questions, tools and rules are the same.
"""

from libra.config.schema import ModelConfig
from libra.config.worlds import CalculatorConfig, LiveEnvConfig, LookupConfig
from libra.env.protocol import Environment, Vocabulary
from libra.errors import ConfigError

NO_CHAT = "the look-up speaks to small models only so far"
SMALL = ModelConfig()
"""No pretrained model: the environment's own words."""


def environment(config: LiveEnvConfig, model: ModelConfig = SMALL) -> Environment:
    """The environment of this configuration; starts nothing. ConfigError if its values contradict each other."""
    match config:
        case CalculatorConfig() if model.pretrained:
            from libra.env.calculator.chat import ChatCalculator

            return ChatCalculator(config, model)
        case CalculatorConfig():
            from libra.env.calculator.environment import Calculator

            return Calculator(config)
        case LookupConfig() if model.pretrained:
            raise ConfigError(
                "env",
                [f"name: got 'lookup' with model.pretrained = {model.pretrained!r}, expected 'calculator': {NO_CHAT}"],
            )
        case LookupConfig():
            from libra.env.lookup.environment import Lookup

            return Lookup(config)


def vocabulary(config: LiveEnvConfig, model: ModelConfig = SMALL) -> Vocabulary:
    """Size, padding and stop ids of this configuration's tokens."""
    if model.pretrained:
        from libra.env.chat.words import ChatWords

        return ChatWords(model).vocabulary
    match config:
        case CalculatorConfig():
            from libra.env.calculator.tokens import VOCABULARY

            return VOCABULARY
        case LookupConfig():
            from libra.env.lookup.tokens import VOCABULARY

            return VOCABULARY
