// Table whose rows become cards in a narrow window, where each cell has a label.
import { html } from "../lib.js";

/** `columns`: [{label, kind, cell(row)}], the first of which names the row; `kind`: CSS classes of the cells, such as "number". */
function Table({ title, columns, rows, keyOf, kind = "" }) {
  return html`<div class="table-frame" tabindex="0" role="region" aria-label=${title}><table class=${`cards ${kind}`}><caption class="hidden">${title}</caption>
    <thead><tr>${columns.map((column) => html`<th key=${column.label} scope="col" class=${column.kind}>${column.label}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)}>${columns.map((column, at) =>
      html`<td key=${column.label} class=${at ? column.kind : `name ${column.kind ?? ""}`} data-label=${at ? column.label : undefined}>${column.cell(row)}</td>`)}</tr>`)}</tbody></table></div>`;
}

export { Table };
