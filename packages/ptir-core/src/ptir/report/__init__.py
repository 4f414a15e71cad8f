"""Pages of HTML that hold all that they show: no network, no framework, data as JSON inside.

A page is a title, facts and sections (``ptir.report.page``); each kind of section has a file in
``assets`` that draws it.
"""

from ptir.report.page import Section, bars, page, table, write_page
from ptir.report.program import program_sections

__all__ = ["Section", "bars", "page", "program_sections", "table", "write_page"]
