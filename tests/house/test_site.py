"""The site of the documentation: links that lead out of it become paths, and one that leads nowhere is found."""

from scripts.site import broken_links, site_text


def test_links_lead_to_the_pages_of_the_site_and_others_become_paths(tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.site.ROOT", tmp_path)
    (tmp_path / "docs/b").mkdir(parents=True)
    page = tmp_path / "docs/a.md"
    code = "```\n[f](../f)\n```\n"
    page.write_text(f"[c](b/c.md#x) [d](../tests/d.py) [`e.py`](../e.py) [web](https://x.example/y)\n\n{code}")
    places = {tmp_path / "docs/a.md": "a.md", tmp_path / "docs/b/c.md": "b/c.md"}
    written = f"[c](b/c.md#x) d (`tests/d.py`) `e.py` [web](https://x.example/y)\n\n{code}"
    assert site_text(page, "a.md", places) == written


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text('<a href="b/#here">b</a> <a href="b/#gone">b</a> <a href="c/">c</a>')
    (tmp_path / "b/index.html").write_text('<h2 id="here">b</h2> <a href="..">a</a> <a href="https://x.example">x</a>')
    assert list(broken_links(tmp_path)) == [
        "index.html: b/#gone leads nowhere",
        "index.html: c/ leads nowhere",
    ]
