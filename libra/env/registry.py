"""From a configuration to its environment: the one place that knows all kinds. Called by controller, roles and doors."""

from libra.config.schema import CalculatorConfig, LiveEnvConfig, LookupConfig
from libra.env.protocol import Environment, Vocabulary


def environment(config: LiveEnvConfig) -> Environment:
    """The environment of this configuration; starts nothing. ConfigError if its values contradict each other."""
    match config:
        case CalculatorConfig():
            from libra.env.calculator.environment import Calculator

            return Calculator(config)
        case LookupConfig():
            from libra.env.lookup.environment import Lookup

            return Lookup(config)


def vocabulary(config: LiveEnvConfig) -> Vocabulary:
    """Size, padding and stop ids of this configuration's tokens."""
    match config:
        case CalculatorConfig():
            from libra.env.calculator.tokens import VOCABULARY

            return VOCABULARY
        case LookupConfig():
            from libra.env.lookup.tokens import VOCABULARY

            return VOCABULARY
