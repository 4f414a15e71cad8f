"""Sentences on a few subjects, to compare how vectors of them rank each other."""

from __future__ import annotations

from typing import Final

SENTENCES: Final = (
    "How do I bake bread without yeast?",
    "Soda and buttermilk let dough rise where there is no yeast.",
    "Knead the dough for ten minutes, then let it rest.",
    "A loaf is done when it sounds hollow.",
    "Rye flour keeps a loaf moist for days.",
    "The oven must be hot before the bread goes in.",
    "Which planets have rings?",
    "Saturn's rings are made of ice and dust.",
    "Uranus and Neptune have thin, dark rings.",
    "A telescope of 60 millimetres shows the rings of Saturn.",
    "Jupiter has four large moons.",
    "Mars has two small moons and no rings.",
    "My laptop does not turn on any more.",
    "Hold the power button for ten seconds, then try again.",
    "A battery that is old may not charge.",
    "The screen stays black although the fan runs.",
    "Update the firmware before you replace the memory.",
    "The keyboard types the wrong letters.",
    "What should I plant in the shade?",
    "Ferns and hostas grow where the sun seldom shines.",
    "Tomatoes need six hours of sun a day.",
    "Water seedlings in the morning.",
    "Slugs eat young lettuce at night.",
    "Prune roses at the end of winter.",
    "How long does it take to learn the violin?",
    "Scales are played slowly before they are played fast.",
    "The bow is held loosely, with a bent thumb.",
    "A string quartet has two violins, a viola and a cello.",
    "Tune the A string first.",
    "She plays the piano and sings in a choir.",
    "The train to the coast leaves at nine.",
    "A return ticket is cheaper than two singles.",
    "The bus stops in front of the station.",
    "Bicycles may be taken along outside rush hours.",
    "The ferry does not run in bad weather.",
    "We missed our flight because of a traffic jam.",
)
