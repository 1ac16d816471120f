"""The pages, in the order of the navigation. A page is one module that ends in `PAGE`."""

from importlib import import_module

from gnomon.ui.site_page import Page

NAMES = ("serve", "fleet", "plan", "pipeline", "posttrain", "routing", "runs")


def all_pages() -> list[Page]:
    return [import_module(f"gnomon.ui.pages.{name}").PAGE for name in NAMES]
