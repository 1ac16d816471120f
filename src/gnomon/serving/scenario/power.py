"""Power, as a scenario says it: caps, watts, and what is counted beside the GPUs."""

from pydantic import Field, NonNegativeFloat, PositiveFloat

from gnomon.catalog.power import PowerFacts, power_data
from gnomon.core.config import Config


class PowerConfig(Config):
    """Power and energy: what is counted beside the GPUs' own draw. Without the section energy is counted all the same
    where the GPU is known."""

    cap_w: PositiveFloat | None = None
    """Most watts of one GPU: its clock is lowered so that it stays within, and what is bound by arithmetic takes longer
    (sets timing.clock where that is not given)."""
    idle_w: PositiveFloat | None = None
    """Watts of one idle GPU; the catalog's if not given (`data/power.yaml`)."""
    max_w: PositiveFloat | None = None
    """Watts of one GPU at full activity; the catalog's if not given."""
    pue: float = Field(1.0, ge=1)
    """Power usage effectiveness of the building: what is drawn at the meter over what the GPUs draw; more
    where the rest of the server is to be counted."""
    price_per_kwh: NonNegativeFloat | None = None
    """US dollars per kilowatt-hour."""
    carbon_g_per_kwh: NonNegativeFloat | None = None
    """Grams of CO2 equivalent per kilowatt-hour."""

    def facts(self, device: str) -> PowerFacts | None:
        """The watts of a device under these settings; None where they are not known."""
        if self.idle_w is not None and self.max_w is not None:
            return PowerFacts(idle_w=self.idle_w, max_w=self.max_w, source="the scenario")
        known = power_data().devices.get(device)
        given = {"idle_w": self.idle_w, "max_w": self.max_w}
        return known and known.model_copy(update={name: watts for name, watts in given.items() if watts})
